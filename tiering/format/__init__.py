"""The formats of the bucket (docs/formats/remote.md). Pure: brokers and Spark both read them here."""
