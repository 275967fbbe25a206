"""Policies for other people and programs: ONNX, folders that can be checked, the Hugging Face hub."""
