{{- define "type" -}}
{{- $type := .type -}}
{{- /* A type that is inlined is written once: its fields are shared, and not copied. */ -}}
{{- $inlined := list -}}
{{- $shared := list -}}
{{- range $other := .all -}}
{{- if and $other.Fields (lt (len $other.Fields) (len $type.Fields)) -}}
{{- $first := index $other.Fields 0 -}}
{{- range $type.Fields -}}
{{- if eq . $first -}}
{{- $inlined = append $inlined (markdownRenderTypeLink $other) -}}
{{- range $other.Fields }}{{ $shared = append $shared .Name }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
{{ with .check }}See [Checks](checks.md#{{ . }}).{{ else }}{{ trim $type.Doc }}{{ end }}
{{- with $inlined }} It also has the fields of {{ join " and " . }}.{{ end }}
{{- with .explained }} {{ . }} explains its values.{{ end }}
{{- if and $type.Members .check }}

| field | type |
| --- | --- |
{{- range $type.Members }}
| `{{ .Name }}` | {{ template "of" . }} |
{{- end }}
{{- else if $type.Members }}

| field | type | meaning |
| --- | --- | --- |
{{- range $type.Members }}
{{- if not (has .Name $shared) }}
| `{{ .Name }}` | {{ template "of" . }} | {{ template "cell" .Doc }} |
{{- end }}
{{- end }}
{{- end }}
{{- if and $type.EnumValues .check }} Values: {{ range $i, $v := $type.EnumValues }}{{ if $i }}, {{ end }}`{{ $v.Name }}`{{ end }}.
{{- else if and $type.EnumValues (not .explained) }}

| value | meaning |
| --- | --- |
{{- range $type.EnumValues }}
{{- $meaning := regexReplaceAll "^[A-Z]\\w+ (means (that )?|is )?" (trim .Doc) "" }}
| `{{ .Name | default "\"\"" }}` | {{ template "cell" (printf "%s%s" (upper (substr 0 1 $meaning)) (substr 1 -1 $meaning)) }} |
{{- end }}
{{- end }}
{{ end -}}

{{- define "cell" -}}
{{ regexReplaceAll "\\s+" (. | trim | replace "|" "\\|") " " }}
{{- end -}}

{{- /* The type of a field, and what it may be. */ -}}
{{- define "of" -}}
{{- $rules := dict -}}
{{- range .Validation -}}
{{- $rule := splitn ": " 2 . -}}
{{- $_ := set $rules $rule._0 $rule._1 -}}
{{- end -}}
{{- $least := coalesce (get $rules "MinLength") (get $rules "MinItems") (get $rules "Minimum") | default "" -}}
{{- $most := coalesce (get $rules "MaxLength") (get $rules "MaxItems") (get $rules "Maximum") | default "" -}}
{{- if or (contains "e+" $most) (hasKey $rules "XIntOrString") -}}{{- $most = "" -}}{{- end -}}
{{ markdownRenderType .Type }}
{{- if and $least $most }} {{ $least }}-{{ $most }}{{ else if $most }} ≤{{ $most }}{{ else if $least }} ≥{{ $least }}{{ end }}
{{- with get $rules "items:MaxLength" }}, each ≤{{ . }}{{ end }}
{{- with get $rules "Pattern" }}, {{ replace "|" "\\|" . }}{{ end }}
{{- if and (hasKey $rules "Enum") (not .Type.EnumValues) }}, `{{ get $rules "Enum" | trimAll "[]" | splitList " " | join "` or `" }}`{{ end }}
{{- if .Default }}, default `{{ .Default }}`{{ else if not (hasKey $rules "Optional") }}, *required*{{ end }}
{{- end -}}
