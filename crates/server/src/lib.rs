//! HTTP: the OpenAI-compatible API and the administrative routes.
