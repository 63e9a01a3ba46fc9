/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// What the templates get in place of a value: a mark is put into the object, and the
// line that has it is replaced after the object was written.
const mark = "TPLMARK."

// template is the text of a file, made of objects.
type template struct {
	// marks are the lines that replace marked ones. ¦ stands for the indentation of the
	// marked line, § for its key, and % for the indentation of what toYaml makes below it.
	marks map[string]string
}

var (
	markedLine = regexp.MustCompile(`^( *)(- )?([^ ]+): ` + regexp.QuoteMeta(mark) + `([a-zA-Z]+)$`)
	// wholeNamespace is a value that is a namespace, which may look like a number.
	wholeNamespace = regexp.MustCompile(`(?m)^( *(?:- )?[^ ]+: )` + namespace + `$`)
	aggregated     = regexp.MustCompile(`(?m)((?:^ +rbac\.authorization\.k8s\.io/aggregate-to-[a-z]+: .*\n)+)`)
)

// object writes an object as a template.
func (t *template) object(o map[string]any) (string, error) {
	u := unstructured.Unstructured{Object: o}
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels["zzz"] = mark + "labels" // the last one, for labels are sorted
	u.SetLabels(labels)
	out, err := yaml.Marshal(u.Object)
	if err != nil {
		return "", err
	}
	text := strings.ReplaceAll(string(out), "{{", `{{ "{{" }}`)
	text = wholeNamespace.ReplaceAllString(text, "${1}{{ .Release.Namespace | quote }}")
	text = strings.ReplaceAll(text, namespace, "{{ .Release.Namespace }}")
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		m := markedLine.FindStringSubmatch(line)
		if m == nil {
			if strings.Contains(line, mark) {
				return "", fmt.Errorf("%s %s: a mark is not alone in its line: %s", u.GetKind(), u.GetName(), line)
			}
			lines = append(lines, line)
			continue
		}
		with, ok := t.marks[m[4]]
		if !ok {
			return "", fmt.Errorf("nothing is known of the mark %s", m[4])
		}
		indent := m[1] + strings.Repeat(" ", len(m[2]))
		if m[2] != "" {
			// The first field of an item.
			if !strings.HasPrefix(with, "¦§:") {
				return "", fmt.Errorf("%s %s: the first field of an item cannot be left out: %s", u.GetKind(), u.GetName(), line)
			}
			with = m[1] + m[2] + strings.TrimPrefix(with, "¦")
		}
		with = strings.NewReplacer("¦", indent, "§", m[3], "%%", fmt.Sprint(len(indent)), "%", fmt.Sprint(len(indent)+2)).Replace(with)
		lines = append(lines, with)
	}
	text = strings.Join(lines, "\n") + "\n"
	return aggregated.ReplaceAllString(text, "    {{- if .Values.rbac.aggregate }}\n$1    {{- end }}\n"), nil
}

// optional is a field that is there if a value is.
func optional(value string) string {
	return "¦{{- with .Values." + value + " }}\n¦§:\n¦  {{- toYaml . | nindent % }}\n¦{{- end }}"
}

var marks = map[string]string{
	"labels":                    `¦{{- include "altershield-operator.labels" . | nindent %% }}`,
	"keep":                      "¦{{- if .Values.crds.keep }}\n¦helm.sh/resource-policy: keep\n¦{{- end }}",
	"inject":                    "¦{{- if .Values.webhook.certManager.enabled }}\n¦annotations:\n¦  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/INJECT\n¦{{- end }}",
	"caBundle":                  "¦{{- with .Values.webhook.certificate.caBundle }}\n¦caBundle: {{ . | b64enc }}\n¦{{- end }}",
	"replicas":                  "¦§: {{ .Values.replicas }}",
	"podLabels":                 "¦{{- with .Values.podLabels }}\n¦{{- toYaml . | nindent %% }}\n¦{{- end }}",
	"podAnnotations":            "¦{{- with .Values.podAnnotations }}\n¦{{- toYaml . | nindent %% }}\n¦{{- end }}",
	"nodeSelector":              optional("nodeSelector"),
	"tolerations":               optional("tolerations"),
	"affinity":                  optional("affinity"),
	"topologySpreadConstraints": optional("topologySpreadConstraints"),
	"imagePullSecrets":          optional("image.pullSecrets"),
	"resources":                 optional("resources"),
	"serviceAnnotations":        optional("callback.service.annotations"),
	"sourceRanges":              optional("callback.service.loadBalancerSourceRanges"),
	"priorityClassName":         "¦{{- with .Values.priorityClassName }}\n¦§: {{ . | quote }}\n¦{{- end }}",
	"image":                     `¦§: {{ include "altershield-operator.image" . | quote }}`,
	"pullPolicy":                "¦§: {{ .Values.image.pullPolicy | quote }}",
	"args":                      "¦§:\n¦{{- include \"altershield-operator.args\" . | nindent %% }}",
	"goMemLimit":                `¦§: {{ include "altershield-operator.goMemLimit" . | quote }}`,
	"volumeMounts":              "¦{{- with include \"altershield-operator.volumeMounts\" . | trim }}\n¦§:\n¦{{- . | nindent %% }}\n¦{{- end }}",
	"volumes":                   "¦{{- with include \"altershield-operator.volumes\" . | trim }}\n¦§:\n¦{{- . | nindent %% }}\n¦{{- end }}",
	"serviceType":               "¦§: {{ .Values.callback.service.type | quote }}",
	"servicePort":               "¦§: {{ .Values.callback.service.port }}",
	"serviceProtocol":           "¦§: {{ if .Values.callback.tls.secretName }}https{{ else }}http{{ end }}",
	"quotaPods":                 "¦§: {{ .Values.priorityClassQuota.pods | quote }}",
	"quotaScope":                "¦§:\n¦- {{ .Values.priorityClassName | quote }}",
	"subjects":                  "¦§:\n¦- kind: ServiceAccount\n¦  name: {{ .Values.metrics.reader.serviceAccount.name | quote }}\n¦  namespace: {{ .Values.metrics.reader.serviceAccount.namespace | quote }}",
	"monitorLabels":             "¦{{- with .Values.metrics.serviceMonitor.labels }}\n¦{{- toYaml . | nindent %% }}\n¦{{- end }}",
	"ruleLabels":                "¦{{- with .Values.metrics.rules.labels }}\n¦{{- toYaml . | nindent %% }}\n¦{{- end }}",
	"callbacksFrom":             "¦§:\n¦{{- toYaml .Values.networkPolicy.callbacksFrom | nindent %% }}",
	"egressTo":                  "¦§:\n¦{{- toYaml .Values.networkPolicy.egress.to | nindent %% }}",
	"metricsFrom":               "¦§:\n¦{{- toYaml .Values.networkPolicy.metricsFrom | nindent %% }}",
}

// part is where an object goes, and when it is rendered.
type part struct {
	file, condition string
	// change puts marks into the object.
	change func(o map[string]any)
}

// partOf says it of an object by its kind and name.
func partOf(kind, name string) (p part, ok bool) {
	switch kind {
	case "Namespace":
		return part{}, true
	case "CustomResourceDefinition":
		return part{"crds.yaml", ".Values.crds.enabled", func(o map[string]any) { set(o, "metadata.annotations.zzz", "keep") }}, true
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		return part{"webhooks.yaml", "", markWebhooks}, true
	case "Deployment":
		return part{"deployment.yaml", "", markManager}, true
	case "PodDisruptionBudget":
		return part{"deployment.yaml", "", nil}, true
	case "ResourceQuota":
		return part{"deployment.yaml", "and .Values.priorityClassName .Values.priorityClassQuota.enabled", func(o map[string]any) {
			set(o, "spec.hard.pods", "quotaPods")
			set(at(o, "spec.scopeSelector.matchExpressions.0"), "values", "quotaScope")
		}}, true
	case "Service":
		if strings.HasSuffix(name, "callback-service") {
			return part{"services.yaml", "", markCallbacks}, true
		}
		return part{"services.yaml", "", nil}, true
	case "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding":
		return partOfRights(kind, name), true
	case "Issuer", "Certificate":
		return part{"certmanager.yaml", ".Values.webhook.certManager.enabled", nil}, true
	case "ServiceMonitor":
		return part{"prometheus.yaml", ".Values.metrics.serviceMonitor.enabled", func(o map[string]any) { set(o, "metadata.labels.zz", "monitorLabels") }}, true
	case "PrometheusRule":
		return part{"prometheus.yaml", ".Values.metrics.rules.enabled", func(o map[string]any) { set(o, "metadata.labels.zz", "ruleLabels") }}, true
	case "ConfigMap":
		return part{"prometheus.yaml", ".Values.metrics.dashboard.enabled", nil}, true
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		return part{"admission-policy.yaml", ".Values.rbac.enrolledOnly", nil}, true
	case "NetworkPolicy":
		if strings.HasSuffix(name, "allow-egress") {
			return part{"network-policy.yaml", "and .Values.networkPolicy.enabled .Values.networkPolicy.egress.enabled", func(o map[string]any) {
				set(at(o, "spec.egress.0"), "to", "egressTo")
			}}, true
		}
		return part{"network-policy.yaml", ".Values.networkPolicy.enabled", func(o map[string]any) {
			for from, policy := range map[string]string{"callbacksFrom": "allow-callbacks", "metricsFrom": "allow-metrics"} {
				if strings.HasSuffix(name, policy) {
					set(at(o, "spec.ingress.0"), "from", from)
				}
			}
		}}, true
	default:
		return part{}, false
	}
}

func partOfRights(kind, name string) part {
	switch {
	case strings.Contains(name, "webhook-restorer"):
		return part{"rbac.yaml", ".Values.rbac.restoreWebhooks", nil}
	case kind == "ClusterRoleBinding" && strings.HasSuffix(name, "metrics-reader"):
		return part{"prometheus.yaml", ".Values.metrics.reader.enabled", func(o map[string]any) { set(o, "subjects", "subjects") }}
	default:
		return part{"rbac.yaml", "", nil}
	}
}

// set puts a mark where a path leads to.
func set(o any, path, name string) {
	parts := strings.Split(path, ".")
	for _, p := range parts[:len(parts)-1] {
		o = at(o, p)
	}
	if m, ok := o.(map[string]any); ok {
		m[parts[len(parts)-1]] = mark + name
	}
}

func markWebhooks(o map[string]any) {
	set(o, "metadata.annotations", "inject")
	hooks, _ := o["webhooks"].([]any)
	for _, hook := range hooks {
		set(hook, "clientConfig.caBundle", "caBundle")
	}
}

func markCallbacks(o map[string]any) {
	set(o, "metadata.annotations", "serviceAnnotations")
	set(o, "spec.loadBalancerSourceRanges", "sourceRanges")
	set(o, "spec.type", "serviceType")
	set(at(o, "spec.ports.0"), "port", "servicePort")
	set(at(o, "spec.ports.0"), "appProtocol", "serviceProtocol")
}

func markManager(o map[string]any) {
	set(o, "spec.replicas", "replicas")
	set(o, "spec.template.metadata.labels.zz", "podLabels")
	set(o, "spec.template.metadata.annotations.zz", "podAnnotations")
	for _, field := range []string{"priorityClassName", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "imagePullSecrets", "volumes"} {
		set(o, "spec.template.spec."+field, field)
	}
	container := at(o, "spec.template.spec.containers.0")
	for field, name := range map[string]string{"image": "image", "imagePullPolicy": "pullPolicy", "args": "args", "resources": "resources", "volumeMounts": "volumeMounts"} {
		set(container, field, name)
	}
	env, _ := at(container, "env").([]any)
	for _, e := range env {
		if at(e, "name") == "GOMEMLIMIT" {
			set(e, "value", "goMemLimit")
		}
	}
}

// templates are all that is made of objects, and the manager's image.
func templates(from *sources) (files map[string]string, image string, err error) {
	manager, err := find(from.standard, "Deployment", managerName)
	if err != nil {
		return nil, "", err
	}
	image, _ = at(manager, "spec.template.spec.containers.0.image").(string)
	known := map[string]bool{}
	files = map[string]string{}
	t := &template{marks: maps.Clone(marks)}
	if err := t.injects(from.certManager); err != nil {
		return nil, "", err
	}
	for _, objects := range [][]unstructured.Unstructured{from.standard, from.certManager, from.prometheus, from.network, from.egress, from.account, from.restore} {
		for i := range objects {
			o := objects[i].DeepCopy()
			key := o.GetKind() + " " + o.GetName()
			if known[key] {
				continue // config/certmanager has all of config/default, too
			}
			known[key] = true
			p, ok := partOf(o.GetKind(), o.GetName())
			if !ok {
				return nil, "", fmt.Errorf("%s: nobody has said where in the chart it belongs, and when it is rendered", key)
			}
			if p.file == "" {
				continue
			}
			if p.change != nil {
				p.change(o.Object)
			}
			text, err := t.object(o.Object)
			if err != nil {
				return nil, "", err
			}
			if o.GetKind() == "Deployment" {
				text = withExtraEnv(text)
			}
			files[p.file] += document(p.condition, text)
		}
	}
	files["_manager.tpl"], err = managerParts(manager, from)
	return files, image, err
}

func document(condition, text string) string {
	if condition == "" {
		return "---\n" + text
	}
	return "{{- if " + condition + " }}\n---\n" + text + "{{- end }}\n"
}

// withExtraEnv wraps the limit of the heap, which is there if that of the memory is,
// and adds what else the environment has.
func withExtraEnv(text string) string {
	limit := regexp.MustCompile(`(?m)^( +)- name: GOMEMLIMIT\n.*\n`)
	return limit.ReplaceAllStringFunc(text, func(lines string) string {
		indent := limit.FindStringSubmatch(lines)[1]
		return indent + "{{- if include \"altershield-operator.goMemLimit\" . }}\n" + lines + indent + "{{- end }}\n" +
			indent + "{{- with .Values.extraEnv }}\n" + indent + "{{- toYaml . | nindent " + fmt.Sprint(len(indent)) + " }}\n" + indent + "{{- end }}\n"
	})
}

// injects reads from which certificate cert-manager injects the authority.
func (t *template) injects(objects []unstructured.Unstructured) error {
	for _, o := range objects {
		if o.GetKind() == "ValidatingWebhookConfiguration" {
			_, certificate, ok := strings.Cut(o.GetAnnotations()["cert-manager.io/inject-ca-from"], "/")
			if !ok {
				return fmt.Errorf("config/certmanager does not say what is injected into %s", o.GetName())
			}
			t.marks["inject"] = strings.Replace(t.marks["inject"], "INJECT", certificate, 1)
			return nil
		}
	}
	return fmt.Errorf("config/certmanager has no webhooks")
}

// managerParts are arguments and volumes of the manager: those of config/default, and
// those that the other directories add.
func managerParts(manager map[string]any, from *sources) (string, error) {
	const args, mounts, volumes = "spec.template.spec.containers.0.args", "spec.template.spec.containers.0.volumeMounts", "spec.template.spec.volumes"
	withCertManager, err := find(from.certManager, "Deployment", managerName)
	if err != nil {
		return "", err
	}
	withServer, err := find(from.server, "Deployment", managerName)
	if err != nil {
		return "", err
	}
	added := func(o map[string]any, path string) string {
		all, _ := at(o, path).([]any)
		before, _ := at(manager, path).([]any)
		out, _ := yaml.Marshal(all[min(len(before), len(all)):])
		return string(out)
	}
	standard, err := yaml.Marshal(at(manager, args))
	if err != nil {
		return "", err
	}
	serverArgs := strings.SplitAfter(strings.TrimSuffix(added(withServer, args), "\n"), "\n")
	if len(serverArgs) != 2 || !strings.HasPrefix(serverArgs[0], "- --altershield-url=") || !strings.HasPrefix(serverArgs[1], "- --altershield-token-file=") {
		return "", fmt.Errorf("config/samples/server gives the manager other arguments than a URL and a file: %q", serverArgs)
	}
	named := func(text, value string) string {
		return regexp.MustCompile(`secretName: .*`).ReplaceAllLiteralString(text, "secretName: {{ "+value+" | quote }}")
	}
	certificate := regexp.MustCompile(`secretName: (.*)`).FindStringSubmatch(added(withCertManager, volumes))
	if certificate == nil {
		return "", fmt.Errorf("config/certmanager mounts no Secret")
	}
	const elsewhere = "or .Values.webhook.certManager.enabled .Values.webhook.certificate.secretName"
	text := slices.Concat(
		define("args",
			string(standard),
			`{{- with .Values.logLevel }}
- {{ printf "--zap-log-level=%s" (toString .) | quote }}
{{- end }}
`, when(elsewhere, added(withCertManager, args)),
			`{{- with .Values.server.url }}
- {{ printf "--altershield-url=%s" . | quote }}
{{- end }}
`, when(".Values.server.tokenSecret", serverArgs[1]+"\n"),
			`{{- range $flag, $value := dict "platform" .Values.server.platform "scene" .Values.server.scene "admission-scene" .Values.server.admissionScene "tenant" .Values.server.tenant "phase" .Values.server.phase "target-type" .Values.server.targetType }}
{{- with $value }}
- {{ printf "--altershield-%s=%s" $flag . | quote }}
{{- end }}
{{- end }}
`, when(".Values.callback.tls.secretName", "- --callback-cert-path=/var/run/altershield/callback\n"),
			`{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
`),
		define("volumeMounts",
			when(elsewhere, added(withCertManager, mounts)),
			when(".Values.server.tokenSecret", added(withServer, mounts)),
			when(".Values.callback.tls.secretName", "- mountPath: /var/run/altershield/callback\n  name: callback-cert\n  readOnly: true\n"),
			"{{- with .Values.extraVolumeMounts }}\n{{ toYaml . }}\n{{- end }}\n"),
		define("volumes",
			when(elsewhere, named(added(withCertManager, volumes), "default "+fmt.Sprintf("%q", certificate[1])+" .Values.webhook.certificate.secretName")),
			when(".Values.server.tokenSecret", named(added(withServer, volumes), ".Values.server.tokenSecret")),
			when(".Values.callback.tls.secretName", "- name: callback-cert\n  secret:\n    defaultMode: 288\n    secretName: {{ .Values.callback.tls.secretName | quote }}\n"),
			"{{- with .Values.extraVolumes }}\n{{ toYaml . }}\n{{- end }}\n"))
	return strings.Join(text, ""), nil
}

func define(name string, text ...string) []string {
	return slices.Concat([]string{`{{- define "altershield-operator.` + name + "\" -}}\n"}, text, []string{"{{- end }}\n"})
}

func when(condition, text string) string {
	return "{{- if " + condition + " }}\n" + text + "{{- end }}\n"
}
