"""Where a model comes from: names to directories, GGUF files to Hugging Face style directories, tensors from disk.

Knows files and formats, and nothing of how a model is run. Import the modules: `resolve` (no torch) finds a model,
`config_file` reads its configuration, `safetensors_source` its tensors.
"""
