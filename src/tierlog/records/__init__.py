"""The record batch of Kafka's format v2 (KIP-98), the codecs inside it, and the indexes beside it.

Everything here works on buffers and values; nothing reads a file, a clock or a socket.
"""
