"""Dashboards for Grafana and alert rules for Prometheus, generated from descriptions in code.

`tierlog generate` writes them, and docs/monitoring holds them. The descriptions use the names of the metric
catalogue; tests ask a real Prometheus for every query.
"""
