"""`/metrics`: figures of a gateway and of participants, in the formats of Prometheus and OpenMetrics."""
