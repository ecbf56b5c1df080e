{{- define "hindcast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, followed by the chart's name unless the release's name contains it. */}}
{{- define "hindcast.fullname" -}}
{{- $name := include "hindcast.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "hindcast.selector" -}}
app.kubernetes.io/name: {{ include "hindcast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "hindcast.labels" -}}
{{ include "hindcast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: hindcast
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "hindcast.image" -}}
{{- default (printf "hindcast-operator:%s" .Chart.AppVersion) .Values.image }}
{{- end }}

{{- define "hindcast.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "hindcast.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is required if serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}
