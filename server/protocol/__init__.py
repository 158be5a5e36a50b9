"""The request bodies of the OpenAI protocol, with the extras that users of open engines rely on."""
