{{/* The prefix of the names of all objects. */}}
{{- define "altershield-operator.fullname" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default "altershieldoperator" | trunc 24 | trimSuffix "-" }}
{{- end }}

{{/* The account of the manager. */}}
{{- define "altershield-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create -}}
{{ include "altershield-operator.fullname" . }}-controller-manager
{{- else -}}
default
{{- end -}}
{{- end }}

{{/* What Helm adds to the labels of each object. */}}
{{- define "altershield-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "altershield-operator.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}
{{- end }}

{{/* Nine tenths of the memory limit, in MiB; empty without a limit, or where extraEnv has one. */}}
{{- define "altershield-operator.goMemLimit" -}}
{{- $own := false -}}
{{- range .Values.extraEnv }}{{ if eq .name "GOMEMLIMIT" }}{{ $own = true }}{{ end }}{{ end -}}
{{- $limit := dig "limits" "memory" "" (.Values.resources | default dict) | toString -}}
{{- if and $limit (not $own) -}}
{{- $number := regexFind "^[0-9.]+" $limit -}}
{{- $unit := trimPrefix $number $limit -}}
{{- $bytes := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- if or (not $number) (not (hasKey $bytes $unit)) -}}
{{- fail (printf "resources.limits.memory: %q is not a quantity that GOMEMLIMIT can be computed of: use Mi or Gi, as in 512Mi" $limit) -}}
{{- end -}}
{{- $mib := divf (mulf (float64 $number) (get $bytes $unit) 0.9) 1048576.0 | floor | int64 -}}
{{- if lt $mib 16 -}}
{{- fail (printf "resources.limits.memory: %q is too little for the manager: begin with 512Mi" $limit) -}}
{{- end -}}
{{ $mib }}MiB
{{- end -}}
{{- end }}

{{/* What a pod of the manager's image runs as, beside the manager. */}}
{{- define "altershield-operator.errandPod" -}}
restartPolicy: {{ .restartPolicy | default "OnFailure" }}
enableServiceLinks: false
serviceAccountName: {{ .account }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
- name: {{ .name }}
  image: {{ include "altershield-operator.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy | quote }}
  args:
    {{- toYaml .args | nindent 4 }}
  env:
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- with .root.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  resources:
    requests:
      cpu: 10m
      memory: 32Mi
    limits:
      memory: 256Mi
  {{- with .root.Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{/* Labels of what hooks make; their pods are none of the manager's. */}}
{{- define "altershield-operator.errandLabels" -}}
app.kubernetes.io/name: altershield-operator
app.kubernetes.io/component: {{ .name }}
{{ include "altershield-operator.labels" .root }}
{{- end }}

{{- define "altershield-operator.errandHook" -}}
helm.sh/hook: {{ .hook }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded{{ if .job }},hook-failed{{ end }}
{{- if .job }}
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- end }}
{{- end }}
