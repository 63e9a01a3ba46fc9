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

package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	// The packages controllers and webhooks register metrics.
	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	_ "github.com/traas-stack/altershield-operator/controllers"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	operatormetrics "github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/workload"
	_ "github.com/traas-stack/altershield-operator/webhooks"
)

const (
	scrapeJob = prefix + "metrics-service"
	runbooks  = "https://github.com/traas-stack/altershield-operator/blob/main/docs/tasks/respond-to-an-alert.md#"
)

// foreign are metrics of Prometheus and the API server.
var foreign = []string{
	"up",
	"apiserver_admission_webhook_fail_open_count",
	"apiserver_admission_webhook_rejection_count",
}

type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var rules struct {
		Spec struct {
			Groups []struct{ Rules []alert }
		}
	}
	var found []alert
	for _, o := range objects(t, render(t, "prometheus")) {
		if o.GetKind() != "PrometheusRule" {
			continue
		}
		data, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, &rules); err != nil {
			t.Fatal(err)
		}
		for _, g := range rules.Spec.Groups {
			found = append(found, g.Rules...)
		}
	}
	if len(found) == 0 {
		t.Fatal("no alerts")
	}
	return found
}

var (
	matchers   = regexp.MustCompile(`\{[^}]*\}`)
	ranges     = regexp.MustCompile(`\[[^\]]*\]|\boffset\s+\w+`)
	groupings  = regexp.MustCompile(`\b(by|without|on|ignoring)\s*\([^)]*\)`)
	identifier = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\b\s*\(?`)
)

// metricsIn returns the names of metrics in a PromQL expression.
func metricsIn(expr string) []string {
	expr = groupings.ReplaceAllString(ranges.ReplaceAllString(matchers.ReplaceAllString(expr, " "), " "), " ")
	var names []string
	for _, word := range identifier.FindAllString(expr, -1) {
		if !strings.HasSuffix(word, "(") && !slices.Contains([]string{"or", "and", "unless", "bool", "le"}, strings.TrimSpace(word)) {
			names = append(names, strings.TrimSpace(word))
		}
	}
	return names
}

func TestMetricsIn(t *testing.T) {
	got := metricsIn(`histogram_quantile(0.99, sum by (le, webhook) (rate(a_seconds_bucket{job="x"}[5m]))) > 1 ` +
		`unless (sum(b offset 10m) == bool 0 or time() - c{name=~"y"} < 3 * 86400)`)
	if want := []string{"a_seconds_bucket", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// metric is a registered metric of the manager.
type metric struct {
	name   string
	labels []string
}

var (
	descName   = regexp.MustCompile(`fqName: "([^"]+)"`)
	descLabels = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
)

// metricsOf returns the metrics of the manager.
func metricsOf(t *testing.T) (found []metric) {
	t.Helper()
	counted := func() (map[operatormetrics.Of]int, error) {
		return map[operatormetrics.Of]int{{Kind: "Deployment", Namespace: "shop"}: 0}, nil
	}
	if err := operatormetrics.BlockedWorkloads([]string{"Deployment"}, counted, true); err != nil {
		t.Fatal(err)
	}
	if err := operatormetrics.HeldWorkloads([]string{"Deployment"}, counted, true); err != nil {
		t.Fatal(err)
	}
	registry, ok := metrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatal("the registry cannot describe its metrics")
	}
	descs := make(chan *prometheus.Desc)
	go func() { registry.Describe(descs); close(descs) }()
	for d := range descs {
		m := metric{name: descName.FindStringSubmatch(d.String())[1]}
		labels := descLabels.FindStringSubmatch(d.String())
		if labels == nil {
			t.Fatalf("no labels in %s", d)
		}
		m.labels = strings.FieldsFunc(labels[1], func(r rune) bool { return r == ',' })
		slices.Sort(m.labels)
		found = append(found, m)
	}
	return found
}

// registered returns the names of the series of the manager.
func registered(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, m := range metricsOf(t) {
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			names[m.name+suffix] = true
		}
	}
	return names
}

// once gives each metric a series, so that its type is known.
func once() {
	operatormetrics.ServerCall(altershield.Call{Action: altershield.ActionStartBatch, Attempts: 1})
	operatormetrics.ServerHeartbeat(true, time.Unix(1, 0))
	operatormetrics.ServerBatches(1, 1)
	operatormetrics.Check(&v1alpha1.CheckStatus{Name: "default/policy/check", Phase: v1alpha1.CheckFailed, Mode: v1alpha1.ModeEnforce})
	operatormetrics.Notified(operatormetrics.NotificationSent, 1)
	for _, kind := range workload.Defended().Kinds() {
		operatormetrics.Begin(kind.GroupVersionKind().Kind)
	}
	operatormetrics.ReleaseEntered("StatefulSet", "Running")
	operatormetrics.ReleaseEnded("StatefulSet", "Success", time.Minute)
	operatormetrics.BlockEnded("StatefulSet", time.Minute)
	operatormetrics.VerdictStored("PRE", false)
	operatormetrics.VerdictTook("PRE", time.Second)
	operatormetrics.StaleRead("ChangePod")
	operatormetrics.Eviction("StatefulSet", operatormetrics.EvictionDone)
	operatormetrics.DefenseLowered("blocking", operatormetrics.LevelOperator)
	operatormetrics.WebhookCertificate(time.Unix(1, 0))
	operatormetrics.ChangeKinds(func() (map[operatormetrics.Condition]int, error) {
		return map[operatormetrics.Condition]int{{Type: "Ready", Status: "False"}: 0}, nil
	})
	operatormetrics.WebhookConfigurationMissing("MutatingWebhookConfiguration", false)
}

// row is a row of the table in docs/reference/metrics.md.
type row struct{ kind, labels, unit, meaning string }

// documented returns the table in docs/reference/metrics.md, by metric.
func documented(t *testing.T) map[string]row {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository(t), "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]row{}
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if name := strings.Trim(strings.TrimSpace(cells[0]), "`"); strings.HasPrefix(name, "altershield_") && len(cells) == 5 {
			rows[name] = row{strings.TrimSpace(cells[1]), cells[2], strings.TrimSpace(cells[3]), strings.TrimSpace(cells[4])}
		}
	}
	return rows
}

// labelIn finds the names of labels in a cell: `name`, or `name`: `value`, `value`; and so on.
var labelIn = regexp.MustCompile("(?:^|;)\\s*`([a-z_]+)`")

// TestMetricsDocumented checks that docs/reference/metrics.md has exactly the registered metrics, with their labels and types.
func TestMetricsDocumented(t *testing.T) {
	once()
	rows := documented(t)
	own := map[string]bool{}
	for _, m := range metricsOf(t) {
		if !strings.HasPrefix(m.name, "altershield_") {
			continue
		}
		own[m.name] = true
		row, ok := rows[m.name]
		if !ok {
			t.Errorf("docs/reference/metrics.md: %s is missing", m.name)
			continue
		}
		var labels []string
		for _, l := range labelIn.FindAllStringSubmatch(row.labels, -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		if !slices.Equal(labels, m.labels) {
			t.Errorf("docs/reference/metrics.md: %s has the labels %v, not %v", m.name, m.labels, labels)
		}
		if row.unit == "" || row.meaning == "" {
			t.Errorf("docs/reference/metrics.md: %s has no unit, or no meaning", m.name)
		}
	}
	for name := range rows {
		if !own[name] {
			t.Errorf("docs/reference/metrics.md: there is no %s", name)
		}
	}
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if kind := strings.ToLower(f.GetType().String()); own[f.GetName()] && rows[f.GetName()].kind != kind {
			t.Errorf("docs/reference/metrics.md: %s is a %s", f.GetName(), kind)
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				checkValue(t, f.GetName(), l.GetName(), l.GetValue(), rows[f.GetName()].labels)
			}
		}
		delete(own, f.GetName())
	}
	for name := range own {
		t.Errorf("%s has no series here: add it to once", name)
	}
}

// checkValue checks that a value of a label is listed, if the cell lists values of the label.
func checkValue(t *testing.T, metric, label, value, cell string) {
	t.Helper()
	for part := range strings.SplitSeq(cell, ";") {
		name, values, listed := strings.Cut(part, ":")
		if listed && strings.Contains(name, "`"+label+"`") && !strings.Contains(values, "`"+value+"`") {
			t.Errorf("docs/reference/metrics.md: %s has %s=%q, too", metric, label, value)
		}
	}
}

// TestMonitoringMetrics checks that alerts and dashboard use registered metrics, of this operator only.
func TestMonitoringMetrics(t *testing.T) {
	known := registered(t)
	for _, name := range foreign {
		known[name] = true
	}
	used := map[string]string{}
	for _, a := range alerts(t) {
		used["alert "+a.Alert] = a.Expr
	}
	for i, expr := range dashboardExprs(t) {
		used["dashboard "+string(rune('A'+i))+" "+expr] = expr
	}
	for where, expr := range used {
		names := metricsIn(expr)
		if len(names) == 0 {
			t.Errorf("%s uses no metric", where)
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
		for _, m := range matchers.FindAllString(expr, -1) {
			if !strings.Contains(m, `job="`+scrapeJob+`"`) && !strings.Contains(m, `(daemonset|deployment|statefulset).kb.io`) {
				t.Errorf("%s: %s selects any operator", where, m)
			}
		}
		if n := len(names); n != len(matchers.FindAllString(expr, -1)) {
			t.Errorf("%s: not each of the %d metrics is selected by labels", where, n)
		}
	}
}

func dashboardExprs(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		UID    string
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	maps := all[corev1.ConfigMap](t, render(t, "prometheus"), "ConfigMap")
	if len(maps) != 1 || maps[0].Labels["grafana_dashboard"] != "1" {
		t.Fatal("want one ConfigMap that Grafana's sidecar finds")
	}
	if err := json.Unmarshal([]byte(maps[0].Data["altershield-operator.json"]), &dashboard); err != nil {
		t.Fatal(err)
	}
	var exprs []string
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %q shows nothing", p.Title)
		}
	}
	if len(exprs) == 0 {
		t.Fatal("the dashboard shows nothing")
	}
	return exprs
}

// units are the units of panels, by Grafana's ids.
var units = []string{"none", "s", "reqps", "ops", "bytes", "percentunit", "short", "dateTimeAsIso"}

// TestDashboardSchema checks what Grafana needs: it shows a panel with a wrong type, unit or place wrongly, without an error.
func TestDashboardSchema(t *testing.T) {
	type source struct{ Type, UID string }
	type panel struct {
		ID                       int
		Type, Title, Description string
		Datasource               source
		GridPos                  struct{ X, Y, W, H int }
		FieldConfig              struct {
			Defaults struct{ Unit string }
		}
		Targets []struct {
			Datasource                source
			Expr, LegendFormat, RefID string
		}
	}
	var dashboard struct {
		SchemaVersion int
		Templating    struct{ List []struct{ Name, Type string } }
		Panels        []panel
	}
	data, err := os.ReadFile(filepath.Join(repository(t), "config", "prometheus", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	prometheus := source{"prometheus", "${datasource}"}
	if dashboard.SchemaVersion < 36 || len(dashboard.Templating.List) != 1 || dashboard.Templating.List[0].Name != "datasource" {
		t.Errorf("schema %d, variables %v: panels select the data source by a variable", dashboard.SchemaVersion, dashboard.Templating.List)
	}
	cells, ids := map[[2]int]string{}, map[int]bool{}
	for i, p := range dashboard.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d (%q): id %d", i, p.Title, p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.X < 0 || g.W <= 0 || g.X+g.W > 24 || g.H <= 0 {
			t.Errorf("%s: no place in 24 columns: %v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("%s covers %s", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Type != "stat" && p.Type != "timeseries" || !slices.Contains(units, p.FieldConfig.Defaults.Unit) || p.Datasource != prometheus {
			t.Errorf("%s: type %q, unit %q, data source %v", p.Title, p.Type, p.FieldConfig.Defaults.Unit, p.Datasource)
		}
		for n, target := range p.Targets {
			if target.RefID != string(rune('A'+n)) || target.Datasource != prometheus || target.LegendFormat == "" {
				t.Errorf("%s: target %d is %+v", p.Title, n, target)
			}
			for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if strings.Contains(target.Expr, "by (") && !regexp.MustCompile(`by \([^)]*\b`+label[1]+`\b`).MatchString(target.Expr) {
					t.Errorf("%s: the series have no label %s", p.Title, label[1])
				}
			}
		}
	}
}

// anchors returns the anchors of the headings of a document, as GitHub creates them.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository(t), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	dropped := regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	found := map[string]bool{}
	fenced := false
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") && !fenced {
			found[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")] = true
		}
	}
	return found
}

func TestAlerts(t *testing.T) {
	described := anchors(t, "docs/tasks/respond-to-an-alert.md")
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		if seen[a.Alert] {
			t.Errorf("%s is there twice", a.Alert)
		}
		seen[a.Alert] = true
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: severity %q", a.Alert, a.Labels["severity"])
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", a.Alert)
		}
		anchor, ok := strings.CutPrefix(a.Annotations["runbook_url"], runbooks)
		if !ok || anchor != strings.ToLower(a.Alert) || !described[anchor] {
			t.Errorf("%s: %s does not lead to its section of docs/tasks/respond-to-an-alert.md", a.Alert, a.Annotations["runbook_url"])
		}
	}
	for anchor := range described {
		about := func(a alert) bool { return strings.ToLower(a.Alert) == anchor }
		if strings.HasPrefix(anchor, "altershield") && anchor != "altershield-server" && !slices.ContainsFunc(alerts(t), about) {
			t.Errorf("docs/tasks/respond-to-an-alert.md#%s is the section of no alert", anchor)
		}
	}
}

// TestServiceMonitor checks that Prometheus scrapes the metrics Service, with a token and over TLS.
func TestServiceMonitor(t *testing.T) {
	var monitor struct {
		Spec struct {
			Selector  struct{ MatchLabels map[string]string }
			Endpoints []struct {
				Port, Path, Scheme, BearerTokenFile string
			}
		}
	}
	manifests := render(t, "prometheus")
	for _, o := range objects(t, manifests) {
		if o.GetKind() == "ServiceMonitor" {
			data, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(data, &monitor); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(monitor.Spec.Endpoints) != 1 || len(monitor.Spec.Selector.MatchLabels) == 0 {
		t.Fatalf("want one endpoint and a selector, have %+v", monitor)
	}
	e := monitor.Spec.Endpoints[0]
	var scraped []string
	installed := render(t, "default")
	for _, s := range all[corev1.Service](t, installed, "Service") {
		fits := true
		for k, v := range monitor.Spec.Selector.MatchLabels {
			fits = fits && s.Labels[k] == v
		}
		if fits && s.Spec.Ports[0].Name == e.Port {
			scraped = append(scraped, s.Name)
		}
	}
	if !slices.Equal(scraped, []string{scrapeJob}) {
		t.Errorf("the scraped Services are %v, want %s", scraped, scrapeJob)
	}
	if e.Scheme != "https" || e.Path != "/metrics" || e.BearerTokenFile == "" {
		t.Errorf("%+v is not authenticated over TLS", e)
	}
	binding := all[rbacv1.ClusterRoleBinding](t, manifests, "ClusterRoleBinding")[0]
	bound := func(r *rbacv1.ClusterRole) bool { return r.Name == binding.RoleRef.Name }
	if !slices.ContainsFunc(all[rbacv1.ClusterRole](t, installed, "ClusterRole"), bound) {
		t.Errorf("there is no ClusterRole %s", binding.RoleRef.Name)
	}
}
