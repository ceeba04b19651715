"""Client quotas: who may do how much, and how long one who did more has to wait. PURE.

Called by net (bytes, time, connections) and by handlers (changes of partitions).
"""
