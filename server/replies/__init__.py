"""From engine events to the bodies and chunks of the OpenAI protocol."""
