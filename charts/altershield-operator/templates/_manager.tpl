{{- define "altershield-operator.args" -}}
- --leader-elect=true
- --metrics-bind-address=:8443
- --health-probe-bind-address=:8081
- --callback-bind-address=:8080
- --webhook-port=9443
{{- if ne (include "altershield-operator.fullname" .) "altershieldoperator" }}
- {{ printf "--webhook-service=%s-webhook-service" (include "altershield-operator.fullname" .) | quote }}
- {{ printf "--webhook-cert-secret=%s-webhook-server-cert" (include "altershield-operator.fullname" .) | quote }}
- {{ printf "--webhook-configurations=%[1]s-mutating-webhook-configuration,%[1]s-validating-webhook-configuration" (include "altershield-operator.fullname" .) | quote }}
{{- end }}
{{- with .Values.logLevel }}
- {{ printf "--zap-log-level=%s" (toString .) | quote }}
{{- end }}
{{- if or .Values.webhook.certManager.enabled .Values.webhook.certificate.secretName }}
- --webhook-cert-path=/var/run/altershield/webhook
{{- end }}
{{- with .Values.server.url }}
- {{ printf "--altershield-url=%s" . | quote }}
{{- end }}
{{- if .Values.server.tokenSecret }}
- --altershield-token-file=/etc/altershield/token
{{- end }}
{{- range $flag, $value := dict "platform" .Values.server.platform "scene" .Values.server.scene "admission-scene" .Values.server.admissionScene "tenant" .Values.server.tenant "phase" .Values.server.phase "target-type" .Values.server.targetType }}
{{- with $value }}
- {{ printf "--altershield-%s=%s" $flag . | quote }}
{{- end }}
{{- end }}
{{- if .Values.callback.tls.secretName }}
- --callback-cert-path=/var/run/altershield/callback
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- define "altershield-operator.volumeMounts" -}}
{{- if or .Values.webhook.certManager.enabled .Values.webhook.certificate.secretName }}
- mountPath: /var/run/altershield/webhook
  name: webhook-cert
  readOnly: true
{{- end }}
{{- if .Values.server.tokenSecret }}
- mountPath: /etc/altershield
  name: altershield-token
  readOnly: true
{{- end }}
{{- if .Values.callback.tls.secretName }}
- mountPath: /var/run/altershield/callback
  name: callback-cert
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "altershield-operator.volumes" -}}
{{- if or .Values.webhook.certManager.enabled .Values.webhook.certificate.secretName }}
- name: webhook-cert
  secret:
    secretName: {{ default (printf "%s-webhook-cert-manager" (include "altershield-operator.fullname" .)) .Values.webhook.certificate.secretName | quote }}
{{- end }}
{{- if .Values.server.tokenSecret }}
- name: altershield-token
  secret:
    secretName: {{ .Values.server.tokenSecret | quote }}
{{- end }}
{{- if .Values.callback.tls.secretName }}
- name: callback-cert
  secret:
    secretName: {{ .Values.callback.tls.secretName | quote }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
