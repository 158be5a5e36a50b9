"""Talks to clients: HTTP, the OpenAI protocol, chat templates, text and settings."""
