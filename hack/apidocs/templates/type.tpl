{{- define "type" }}
{{ trim .Doc }}
{{- with .SortedReferences }}

Part of {{ range $i, $type := . }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $type }}{{ end }}.
{{- end }}
{{- with index .Markers "kubebuilder:validation:Enum" }}

One of {{ range $i, $value := index . 0 }}{{ if $i }}, {{ end }}`{{ $value | default "\"\"" }}`{{ end }}.
{{- end }}
{{- with index .Markers "kubebuilder:validation:XValidation" }}

What is not so is refused, with the message:
{{ range . }}
- {{ with .FieldPath }}`{{ . }}`: {{ end }}{{ .Message }}
{{- end }}
{{- end }}
{{- if .Members }}

| field | type | meaning | validation |
| --- | --- | --- | --- |
{{- with .GVK }}
| `apiVersion` | string | `{{ .Group }}/{{ .Version }}` | |
| `kind` | string | `{{ .Kind }}` | |
{{- end }}
{{- range .Members }}
| `{{ .Name }}` | {{ markdownRenderType .Type }} | {{ if ne .Name "metadata" }}{{ template "cell" .Doc }} {{ end }}| {{ template "validation" . }}|
{{- end }}
{{- end }}
{{- if .EnumValues }}

| value | meaning |
| --- | --- |
{{- range .EnumValues }}
| `{{ .Name | default "\"\"" }}` | {{ template "cell" (regexReplaceAll "^[A-Z]\\w+ (means (that )?|is )?" .Doc "") }} |
{{- end }}
{{- end }}
{{ end -}}

{{- define "cell" -}}
{{ regexReplaceAll "\\s+" (. | trim | replace "|" "\\|") " " }}
{{- end -}}

{{- define "validation" -}}
{{- $field := . -}}
{{- $parts := list -}}
{{- range .Validation -}}
{{- if eq . "Optional: {}" -}}
{{- $parts = prepend $parts "*optional*" -}}
{{- else if not (and (hasPrefix "Enum: " .) (index $field.Type.Markers "kubebuilder:validation:Enum")) -}}
{{- $parts = append $parts (replace "|" "\\|" (untitle .)) -}}
{{- end -}}
{{- end -}}
{{- with .Default -}}
{{- $parts = append $parts (printf "default: `%s`" .) -}}
{{- end -}}
{{- with $parts }}{{ join "; " . }} {{ end -}}
{{- end -}}
