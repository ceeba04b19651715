"""Record batches of Kafka's format v2 (KIP-98), their codecs and indexes.

Everything here works on buffers and values; nothing reads a file, a clock or a socket.
"""
