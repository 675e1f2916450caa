"""Alert rules for Prometheus, as the YAML of a rule file."""

from __future__ import annotations

RULES = """\
# Alert rules for gdrtop metrics. Check them with promtool check rules, and name the file under rule_files in
# prometheus.yml. A node that never had these metrics raises no alert here: use up == 0, or absent() with the
# names of your nodes.
groups:
  - name: gdrtop
    rules:
      - alert: GdrtopBroken
        expr: gdrtop_verdict{state="broken"} == 1
        for: 5m
        labels:
          severity: critical
        annotations:
          summary: "GPUDirect RDMA is broken on {{ $labels.instance }}"
          description: "Run gdrtop check on the node to see the cause and the fix."
      - alert: GdrtopDegraded
        expr: gdrtop_verdict{state="degraded"} == 1
        for: 15m
        labels:
          severity: warning
        annotations:
          summary: "GPUDirect RDMA is degraded on {{ $labels.instance }}"
          description: "Run gdrtop check on the node to see the cause and the fix."
      - alert: GdrtopCriticalFinding
        expr: max without (device, pci_bus_id, title) (gdrtop_finding{severity="critical"}) == 1
        for: 5m
        labels:
          severity: critical
        annotations:
          # The title is no label of the alert: another version of gdrtop may word it differently.
          summary: >-
            {{ with printf "gdrtop_finding{id=%q,instance=%q}" $labels.id $labels.instance | query }}{{
            . | first | label "title" }}{{ else }}{{ $labels.id }}{{ end }} on {{ $labels.instance }}
          description: "Run gdrtop check {{ $labels.id }} on the node."
      - alert: GdrtopJobNotDirect
        # What an HPC center calls "the job fell back": nothing broke, and it is several times slower.
        expr: gdrtop_jobs{path=~"staged|tcp"} > 0
        for: 2m
        labels:
          severity: warning
        annotations:
          summary: "A job on {{ $labels.instance }} does not use GPUDirect RDMA (path {{ $labels.path }})"
          description: "Run gdrtop explain there: it says why, and what its user can change."
      - alert: GdrtopJobSilent
        # Needs gdrtop metrics --listen: one reading does not show silence. Other ranks also wait while one
        # writes a checkpoint.
        expr: gdrtop_job_silent_seconds > 0
        for: 5m
        labels:
          severity: warning
        annotations:
          summary: "A job on {{ $labels.instance }} has moved no data for {{ $value | humanizeDuration }}"
          description: "Its ranks wait. See gdrtop hang there, or gdrtop fleet hang for all nodes."
      - alert: GdrtopVerdictUnknown
        expr: gdrtop_verdict{state="unknown"} == 1
        for: 30m
        labels:
          severity: warning
        annotations:
          summary: "gdrtop cannot judge GPUDirect RDMA on {{ $labels.instance }}"
          description: "Run gdrtop check on the node as root to see what could not be read."
      - alert: GdrtopDataStale
        expr: time() - gdrtop_last_check_timestamp_seconds > 900
        for: 5m
        labels:
          severity: warning
        annotations:
          summary: "gdrtop has not checked {{ $labels.instance }} for {{ $value | humanizeDuration }}"
          description: "See systemctl status gdrtop-metrics.timer gdrtop-metrics.service on the node."
      - alert: GdrtopGone
        # While gdrtop has no metrics, the other alerts of its node end, well or not.
        expr: >-
          last_over_time(gdrtop_last_check_timestamp_seconds[6h])
          unless on (instance) gdrtop_last_check_timestamp_seconds
        for: 10m
        labels:
          severity: warning
        annotations:
          summary: "gdrtop on {{ $labels.instance }} has no metrics any more"
          description: "gdrtop metrics, its exporter or the node is down. This alert ends after 6 hours."
      - alert: GdrtopPortPaused
        expr: >-
          max without (priority) (rate(gdrtop_port_pause_seconds_total{direction="received"}[5m]))
          > 0.1
        for: 10m
        labels:
          severity: warning
        annotations:
          summary: "{{ $labels.device }} on {{ $labels.instance }} is paused by the network"
          description: "It must wait {{ $value | humanizePercentage }} of the time: the network is congested."
      - alert: GdrtopPortPausesNetwork
        expr: >-
          max without (priority) (rate(gdrtop_port_pause_seconds_total{direction="transmitted"}[5m]))
          > 0.1
        for: 10m
        labels:
          severity: warning
        annotations:
          summary: "{{ $labels.device }} on {{ $labels.instance }} pauses the network"
          description: "It receives slower than its peers send {{ $value | humanizePercentage }} of the time."
"""
