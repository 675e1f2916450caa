{{/* The name of all objects: that of the release, which is usually gdrtop. */}}
{{- define "gdrtop.name" -}}
{{- if contains "gdrtop" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-gdrtop{{ end -}}
{{- end }}

{{/* What selects the pods; kubectl gdrtop finds them by the first. */}}
{{- define "gdrtop.selector" -}}
app.kubernetes.io/name: gdrtop
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gdrtop.labels" -}}
{{ include "gdrtop.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image; arguments: its values, the chart, and what sets it. */}}
{{- define "gdrtop.image" -}}
{{- $image := index . 0 -}}
{{- $why := printf "%s.repository is not set; build the image from tui/deploy/Containerfile" (index . 2) -}}
{{- required $why $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (index . 1).AppVersion }}{{ end -}}
{{- end }}

{{/* What each container may do. */}}
{{- define "gdrtop.securityContext" -}}
runAsUser: 0
readOnlyRootFilesystem: true
{{- if .Values.privileged }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
seccompProfile:
  type: RuntimeDefault
capabilities:
  drop: [ALL]
  # Enter / of the node, read files and processes of other users.
  add: [SYS_CHROOT, DAC_READ_SEARCH, SYS_PTRACE]
{{- end }}
{{- end }}

{{/* What each container sees: / of the node, the program that reads it, and a directory for short-lived files. */}}
{{- define "gdrtop.mounts" -}}
- name: host
  mountPath: /host
  readOnly: true
  {{- if semverCompare ">=1.31-0" .Capabilities.KubeVersion.Version }}
  # Also what is mounted below /.
  recursiveReadOnly: IfPossible
  {{- end }}
- name: program
  mountPath: /gdrtop
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end }}
