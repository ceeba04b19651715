"""Formats of the bucket (docs/formats/remote.md), shared by brokers and Spark. Pure."""
