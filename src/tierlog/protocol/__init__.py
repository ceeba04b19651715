"""The wire protocol: messages, codec, API table, error codes. Pure: bytes in, values out."""
