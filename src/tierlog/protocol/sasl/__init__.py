"""SASL mechanisms as exchanges of messages, for both ends of a connection. Pure: nonces are arguments."""
