"""The memory of a recurrent policy, between its trunk and its heads: a GRU or an LSTM, as torch defines them.

Written out in torch and differentiated by autograd; `kernels/native_cell.py` computes the same in C, and a test
compares the two. T steps, B sequences, I inputs, H units, G gates, S numbers of state: H, or h and c of an LSTM.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from parallel_ppo.settings.kinds import RECURRENT_KINDS


class Cell(nn.Module):
    def __init__(self, kind: str, num_inputs: int, size: int) -> None:
        super().__init__()
        gates, states = RECURRENT_KINDS[kind]
        self.kind, self.size, self.num_states, rows = kind, size, states * size, gates * size
        self.input_weight = nn.Parameter(torch.empty(rows, num_inputs))  # [G * H, I]
        self.recurrent_weight = nn.Parameter(torch.empty(rows, size))  # [G * H, H]
        self.input_bias = nn.Parameter(torch.zeros(rows))
        self.recurrent_bias = nn.Parameter(torch.zeros(rows))

    def forward(self, features: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """[T * B, I], [B, S] and [T, B] -> outputs [T * B, H] and the state after the last step. The state is 0 where
        an episode starts.
        """
        projected = functional.linear(features, self.input_weight, self.input_bias)
        outputs, step = [], self._gru if self.kind == "gru" else self._lstm
        for inputs, start in zip(projected.view(len(starts), -1, projected.shape[1]), starts, strict=True):
            state = step(inputs, state.masked_fill(start.unsqueeze(1) != 0, 0.0))
            outputs.append(state[:, : self.size])
        return torch.cat(outputs), state

    def _gru(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        recurrent = functional.linear(hidden, self.recurrent_weight, self.recurrent_bias)
        (reset, update, new), (from_reset, from_update, from_new) = inputs.chunk(3, 1), recurrent.chunk(3, 1)
        candidate = torch.tanh(new + torch.sigmoid(reset + from_reset) * from_new)
        return candidate + torch.sigmoid(update + from_update) * (hidden - candidate)

    def _lstm(self, inputs: Tensor, state: Tensor) -> Tensor:
        hidden, memory = state.chunk(2, 1)
        gates = inputs + functional.linear(hidden, self.recurrent_weight, self.recurrent_bias)
        enter, forget, new, out = gates.chunk(4, 1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
        return torch.cat((torch.sigmoid(out) * torch.tanh(memory), memory), 1)
