//! GGUF files and Hugging Face folders to a model description and a tensor table.
