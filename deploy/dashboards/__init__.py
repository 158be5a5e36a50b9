"""Grafana dashboards as Python records, and the JSON made of them.

`python -m deploy.dashboards` writes the JSON beside this file. It needs `grafana-foundation-sdk`
from the extra `dev`; nothing that serves imports this package.
"""
