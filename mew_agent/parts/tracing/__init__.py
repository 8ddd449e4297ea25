"""Traces of turns, model calls, tool calls and compactions for OpenTelemetry. Needs the extra `otel`."""
