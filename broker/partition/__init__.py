"""PURE core of one partition: leader decisions, producer state, leader epochs, retention and roll rules."""
