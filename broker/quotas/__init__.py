"""Client quotas: limits on what clients use, and the throttle time of those that exceed them. PURE.

Called by net (time, connections), handlers (bytes, controller mutations) and replication (throttles).
"""
