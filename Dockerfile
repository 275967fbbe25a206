# For CPUs. Not built in this project's tests: there is no Docker where they run.
#   docker build -t parallel-ppo . && docker run --rm -v "$PWD/runs:/training/runs" parallel-ppo train --env CartPole-v1
FROM python:3.11-slim AS build
ARG TORCH_INDEX_URL=
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /source
RUN pip install --no-cache-dir --prefix /installed ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} "/source[procgen]"
ENV PYTHONPATH=/installed/lib/python3.11/site-packages PARALLEL_PPO_KERNEL_CACHE=/installed/kernels
RUN python -m parallel_ppo.kernels.build

FROM python:3.11-slim
COPY --from=build /installed /usr/local
ENV PARALLEL_PPO_KERNEL_CACHE=/usr/local/kernels
WORKDIR /training
ENTRYPOINT ["parallel-ppo"]
