"""Client quotas: limits on what clients use, and the throttle time of those that exceed them. PURE.

Called by net (bytes, time, connections) and by handlers (controller mutations).
"""
