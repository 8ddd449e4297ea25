"""A real model on this machine: a GGUF file on llama.cpp's server. Needs the extra `local`."""
