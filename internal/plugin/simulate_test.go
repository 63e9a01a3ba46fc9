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

package plugin

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestClassOf(t *testing.T) {
	at := reported
	for _, tt := range []struct {
		verdict        SimulatedVerdict
		bad            bool
		decided, ended time.Time
		want           SimulatedClass
	}{
		{SimulatedFailed, true, at, at.Add(time.Minute), ClassTrue},
		{SimulatedFailed, true, at, at, ClassTrue},
		{SimulatedFailed, true, at, at.Add(-time.Second), ClassLate},
		{SimulatedFailed, true, at, time.Time{}, ClassTrue}, // rolled back at an unknown time
		{SimulatedFailed, false, at, at.Add(day), ClassFalse},
		{SimulatedFailed, false, at, time.Time{}, ClassFalse},
		{SimulatedPassed, true, at, at, ClassMissed},
		{SimulatedPassed, true, at, time.Time{}, ClassMissed},
		{SimulatedPassed, false, at, at.Add(day), ClassOK},
		{SimulatedPassed, true, at, at.Add(-time.Second), ClassNone}, // its pods were gone
		{SimulatedNotJudged, true, time.Time{}, at, ClassNone},
		{SimulatedNotJudged, false, time.Time{}, time.Time{}, ClassNone},
	} {
		if got := classOf(tt.verdict, tt.bad, tt.decided, tt.ended); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

func TestOutcomeOf(t *testing.T) {
	of := func(began time.Duration, status v1alpha1.ChangeWorkloadStatusType, again bool) *occurrence {
		return &occurrence{began: reported.Add(began), status: status, again: again}
	}
	unknown := &occurrence{after: reported, again: true}
	for _, tt := range []struct {
		r, next *occurrence
		want    string
		bad     bool
	}{
		{of(0, "", false), nil, "runs", false},
		{of(0, "", false), of(31*time.Minute, "", false), "ran", false},
		{of(0, "", false), of(30*time.Minute, "", false), "replaced in 30m", true},
		{of(0, "", false), of(2*day, "", true), "rolled back", true},
		{of(0, "", false), unknown, "rolled back", true},
		{of(0, suspend, false), nil, "failed", true},
		{of(0, suspend, false), of(day, "", false), "failed", true},
		{of(0, rolled, false), nil, "rolled back", true},
		{of(0, success, false), of(day, "", false), "ran", false},
	} {
		if got, bad := outcomeOf(tt.r, tt.next); got != tt.want || bad != tt.bad {
			t.Errorf("%+v, %+v: %s %t", tt.r, tt.next, got, bad)
		}
	}
}

func TestOccurrencesOf(t *testing.T) {
	at := func(hours int) time.Time { return reported.Add(time.Duration(hours) * time.Hour) }
	of := func(version string, created int, numbers ...int64) template {
		return template{name: "web-" + version, version: version, created: at(created), numbers: numbers}
	}
	recorded := func(version string, hours int, status v1alpha1.ChangeWorkloadStatusType) v1alpha1.PreviousRelease {
		return v1alpha1.PreviousRelease{Version: version, StartTimeUnix: at(hours).Add(time.Second).Unix(), Status: status}
	}
	undone := func(version string, hours, until int) v1alpha1.PreviousRelease {
		r := recorded(version, hours, rolled)
		r.UpdateTimeUnix = at(until).Unix()
		return r
	}
	for name, tt := range map[string]struct {
		templates []template
		records   []v1alpha1.PreviousRelease
		// want has the version, number, start and state of each release.
		want []string
	}{
		"none":     {},
		"in order": {templates: []template{of("b", 2, 2), of("a", 1, 1)}, want: []string{"a 1 +1", "b 2 +2"}},
		"a Deployment that was rolled back": {
			templates: []template{of("a", 1, 1, 3), of("b", 2, 2)}, want: []string{"a 1 +1", "b 2 +2", "a 3 again after +2"},
		},
		"and the bad version again": {
			templates: []template{of("a", 1, 1, 3), of("b", 2, 2, 4)},
			want:      []string{"a 1 +1", "b 2 +2", "a 3 again after +2", "b 4 again after +2"},
		},
		"and released after that": {
			templates: []template{of("a", 1, 1, 3), of("b", 2, 2), of("c", 4, 4)},
			want:      []string{"a 1 +1", "b 2 +2", "a 3 again after +2 before +4", "c 4 +4"},
		},
		"a StatefulSet that was rolled back": {
			templates: []template{of("a", 1, 3), of("b", 2, 2)}, want: []string{"a 0 +1", "b 2 +2", "a 3 again after +2"},
		},
		"with records": {
			templates: []template{of("a", 1, 1, 3), of("b", 2, 2)},
			records:   []v1alpha1.PreviousRelease{recorded("a", 3, success), recorded("b", 2, rolled), recorded("a", 1, success)},
			want:      []string{"a 1 +1 Success", "b 2 +2 Rollback", "a 3 again +3 Success"},
		},
		"a record of a rollback has its time": {
			templates: []template{of("a", 1, 1, 3, 5), of("b", 2, 2), of("c", 4, 4)},
			records:   []v1alpha1.PreviousRelease{undone("c", 4, 5), undone("b", 2, 3), recorded("a", 1, success)},
			want:      []string{"a 1 +1 Success", "b 2 +2 Rollback", "a 3 again +3", "c 4 +4 Rollback", "a 5 again +5"},
		},
		"a revision is gone": {
			templates: []template{of("b", 2, 2)}, records: []v1alpha1.PreviousRelease{recorded("b", 2, success), recorded("a", 1, suspend)},
			want: []string{"a 0 +1 Suspend", "b 2 +2 Success"},
		},
		"a record of a revision again": {
			templates: []template{of("a", 1, 3), of("b", 2, 2)},
			records:   []v1alpha1.PreviousRelease{recorded("a", 5, success), recorded("b", 4, success), recorded("a", 3, suspend)},
			want:      []string{"a 0 +1", "b 2 +2", "a 3 again +3 Suspend", "b 0 again +4 Success", "a 0 again +5 Success"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			hours := func(at time.Time) string { return fmt.Sprintf("+%.0f", at.Sub(reported).Hours()) }
			for _, o := range occurrencesOf(tt.templates, tt.records) {
				text := fmt.Sprint(o.version, " ", o.number)
				if o.again {
					text += " again"
				}
				if o.began.IsZero() {
					text += " after " + hours(o.after)
				} else {
					text += " " + hours(o.began)
				}
				if o.began.IsZero() && !o.before.IsZero() {
					text += " before " + hours(o.before)
				}
				got = append(got, strings.TrimSpace(text+" "+string(o.status)))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodsIn(t *testing.T) {
	at := func(seconds int) model.Time { return model.TimeFromUnix(reported.Unix() + int64(seconds)) }
	series := func(pod, uid string, samples ...[2]int) *model.SampleStream {
		s := &model.SampleStream{Metric: model.Metric{"pod": model.LabelValue(pod), "uid": model.LabelValue(uid)}}
		for _, sample := range samples {
			s.Values = append(s.Values, model.SamplePair{Timestamp: at(sample[0]), Value: model.SampleValue(reported.Unix() + int64(sample[1]))})
		}
		return s
	}
	// The values are the times of creation, and of becoming Ready. The second pod was created again with its name.
	created := model.Matrix{series("new", "1", [2]int{45, 30}, [2]int{60, 30}), series("web-0", "2", [2]int{0, -90}, [2]int{15, -90}),
		series("web-0", "3", [2]int{60, 31}, [2]int{75, 31})}
	ready := model.Matrix{series("new", "1", [2]int{45, 32}, [2]int{60, 58}), series("web-0", "2", [2]int{0, -80}),
		series("web-0", "3", [2]int{60, 59})}
	for name, tt := range map[string]struct {
		ready model.Matrix
		want  []string
	}{
		"exact": {ready, []string{"new 32", "web-0 59", "web-0 -80"}},
		"seen":  {nil, []string{"new 45", "web-0 60", "web-0 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			pods := podsIn(created, tt.ready, func(_ string, at time.Time) bool { return at.After(reported) })
			var got []string
			for _, pod := range pods.fresh {
				got = append(got, fmt.Sprintf("%s %.0f", pod.Name, pod.ReadySince.Sub(reported).Seconds()))
			}
			for _, pod := range pods.old {
				got = append(got, fmt.Sprintf("%s %.0f", pod.Name, pod.ReadySince.Sub(reported).Seconds()))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if got := pods.ended.Sub(reported); got != 75*time.Second {
				t.Errorf("ended %s", got)
			}
		})
	}
}

func TestForwarding(t *testing.T) {
	for address, want := range map[string]string{
		"http://prometheus.monitoring.svc:9090":            "-n monitoring service/prometheus 9090:9090,",
		"http://mimir.obs.svc.cluster.local:80/prometheus": "-n obs service/mimir 9090:80,",
		"https://prometheus.example.com":                   "-n NAMESPACE service/NAME 9090:9090,",
		"":                                                 "-n NAMESPACE service/NAME 9090:9090,",
	} {
		if got := forwarding(address); !strings.Contains(got, want) {
			t.Errorf("%q: %s", address, got)
		}
	}
}

// pastTraffic is a pod that a fake Prometheus knows: Ready between two times before now, with requests and errors of a minute.
type pastTraffic struct {
	from, until      time.Duration
	requests, errors float64
}

// pastServer plays a Prometheus with the history of pods.
func pastServer(t *testing.T, now time.Time, pods map[string]pastTraffic) *httptest.Server {
	quoted := regexp.MustCompile(`pod=~"([^"]*)"`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		query := r.Form.Get("query")
		number := func(name string) float64 {
			v, _ := strconv.ParseFloat(r.Form.Get(name), 64)
			return v
		}
		var own *regexp.Regexp
		if of := quoted.FindStringSubmatch(query); of != nil {
			own = regexp.MustCompile("^(" + of[1] + ")$")
		}
		if strings.HasSuffix(r.URL.Path, "/query") {
			result := `{"metric":{},"value":[1,"1"]}`
			if strings.HasPrefix(query, "group by (__name__") {
				result = `{"metric":{"__name__":"http_server_request_duration_seconds_count"},"value":[1,"1"]}`
			} else if strings.HasPrefix(query, "min(") {
				result = ""
				for _, name := range slices.Sorted(maps.Keys(pods)) {
					after := now.Add(-pods[name].from).Unix()
					if limit, _ := strconv.ParseInt(query[strings.LastIndex(query, " ")+1:len(query)-1], 10, 64); own.MatchString(name) && after > limit {
						result = fmt.Sprintf(`{"metric":{},"value":[1,"%d"]}`, after)
					}
				}
			}
			fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
			return
		}
		series := map[string][]string{}
		for key, pod := range pods {
			name, _, _ := strings.Cut(key, "#")
			if own == nil || !own.MatchString(name) {
				continue
			}
			created := now.Add(-pod.from)
			var values []string
			for at := number("start"); at <= number("end"); at += number("step") {
				if at < float64(created.Unix()) || at > float64(now.Add(-pod.until).Unix()) {
					continue
				}
				minutes := (at-float64(created.Unix()))/60 + 1
				v := 0.05
				switch {
				case strings.HasPrefix(query, "kube_pod_created"):
					v = float64(created.Unix())
				case strings.Contains(query, "5.."):
					v = float64(int(pod.errors * minutes))
				case strings.HasPrefix(query, "sum by (pod) (http_server_request_duration_seconds_count"):
					v = float64(int(pod.requests * minutes))
				}
				values = append(values, fmt.Sprintf(`[%d,"%g"]`, int64(at), v))
			}
			if !strings.HasPrefix(query, "kube_pod_created") {
				key = name // its metrics have no uid
			}
			series[key] = append(series[key], values...)
		}
		var all []string
		for key, values := range series {
			if name, _, _ := strings.Cut(key, "#"); len(values) > 0 {
				slices.Sort(values) // by time
				all = append(all, fmt.Sprintf(`{"metric":{"pod":%q},"values":[%s]}`, name, strings.Join(values, ",")))
			}
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`, strings.Join(all, ","))
	}))
	t.Cleanup(server.Close)
	return server
}

// webHistory has a healthy release, a bad one that was rolled back, and their pods; the pods of the first release are unknown.
func webHistory(now time.Time) ([]client.Object, map[string]pastTraffic) {
	const h, m = time.Hour, time.Minute
	pods := map[string]pastTraffic{"web-c-cc": {2 * h, 2*h - 12*m, 600, 24}, "web-b-again": {2*h - 12*m, 0, 600, 1}}
	for i := range 6 {
		pods[fmt.Sprint("web-a-aa", i)] = pastTraffic{5 * h, 4*h - 15*m, 600, 1}
		pods[fmt.Sprint("web-b-bb", i)] = pastTraffic{4 * h, 0, 600, 1}
	}
	// A StatefulSet, whose pods keep their names.
	for i := range 4 {
		replaced := 3*h - time.Duration(3-i)*7*m
		pods[fmt.Sprintf("db-%d#old", i)], pods[fmt.Sprint("db-", i)] = pastTraffic{6 * h, replaced, 600, 1}, pastTraffic{replaced - m, 0, 600, 1}
	}
	revision := func(name string, number int64, created time.Duration) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-created)),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: new(true)}}},
			Revision: number, Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"metadata":{"labels":{"a":"` + name + `"}}}}}`)},
		}
	}
	return []client.Object{
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "db", Labels: map[string]string{"app": "web"}}},
		revision("db-1", 1, 10*h), revision("db-2", 2, 3*h),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web", Labels: map[string]string{"app": "web"}}},
		replicaSetOf("a", now.Add(-10*h), "1", ""), replicaSetOf("b", now.Add(-4*h), "4", "2"), replicaSetOf("c", now.Add(-2*h), "3", ""),
	}, pods
}

func TestSimulate(t *testing.T) {
	objects, pods := webHistory(reported)
	out, report, err := simulated(t, reported, pastServer(t, reported, pods).URL, objects...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out)
	var got []string
	for _, r := range report.Releases {
		got = append(got, fmt.Sprintf("%d %s: %s %s", r.Revision, r.Outcome, r.Verdict, r.Class))
	}
	want := []string{"4 runs: NotJudged NotJudged", "3 rolled back: Failed True", "2 runs: Passed OK", "2 ran: Passed OK"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, line := range strings.Split(out, "\n") {
		if width(line) > 80 {
			t.Errorf("%d columns: %s", width(line), line)
		}
	}
}

func TestSimulateUnknown(t *testing.T) {
	objects, _ := webHistory(reported)
	out, report, err := simulated(t, reported, pastServer(t, reported, nil).URL, objects...)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "deployment/web 4  unknown") || report.Summary.NotJudged != 4 ||
		!strings.Contains(report.Releases[0].Message, "or no kube-state-metrics") {
		t.Errorf("%s%+v", out, report.Summary)
	}
	_, _, err = simulated(t, reported, "http://127.0.0.1:1", objects...)
	if err == nil || !strings.Contains(err.Error(), "kubectl port-forward") {
		t.Errorf("without Prometheus: %v", err)
	}
	if _, _, err = simulated(t, reported, "", objects...); err == nil || !strings.Contains(err.Error(), "address of the endpoint") {
		t.Errorf("without an endpoint: %v", err)
	}
}

// TestSimulateReadsNoSecret: the token comes from a file, and an endpoint with a Secret is refused.
func TestSimulateReadsNoSecret(t *testing.T) {
	e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "prometheus"}}
	e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointPrometheus, URL: "http://prometheus.monitoring.svc:9090",
		Auth: &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}}
	_, _, err := simulated(t, reported, "", e)
	if err == nil || !strings.Contains(err.Error(), "reads no Secrets") || !strings.Contains(err.Error(), "-n monitoring service/prometheus") {
		t.Errorf("%v", err)
	}
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"vector","result":[]}}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSimulating(t, reported, server.URL)
	s.tokenFile = file
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if _, err := s.on(t.Context(), clusterOf([]client.Object{e, ns}), nil, time.Hour); err != nil || got != "Bearer abc" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestPolicyOfFile: the policy of a file is the one that the API server would store, or its error.
func TestPolicyOfFile(t *testing.T) {
	manifest := func(spec string) string {
		return "apiVersion: app.ops.cloud.alipay.com/v1alpha1\nkind: DefensePolicy\nmetadata: {name: slow, namespace: elsewhere}\n" +
			"spec: " + spec + "\n"
	}
	const prometheus = "endpointRef: {name: prom}, query: up, failWhen: value > 1.0"
	for name, tt := range map[string]struct {
		manifest string
		// wants are parts of the error; none if there is none.
		wants []string
	}{
		"valid":    {manifest("{checks: [{name: a, prometheus: {" + prometheus + "}}, {name: b, podHealth: {}}]}"), nil},
		"no check": {manifest("{}"), []string{"spec.checks", "give at least one check"}},
		"unknown field": {
			manifest("{checks: [{name: a, dead-line: 5m, prometheus: {" + prometheus + ", intervall: 5s}}]}"),
			[]string{"unknown field", "spec.checks[0].dead-line", "spec.checks[0].prometheus.intervall", "kubectl explain"},
		},
		"unknown field of the metadata": {
			strings.Replace(manifest("{}"), "{name", "{label: {}, name", 1), []string{"unknown field", "metadata.label"},
		},
		"wrong enum": {
			manifest("{mode: Watch, checks: [{name: a, prometheus: {" + prometheus + "}}]}"),
			[]string{"spec.mode", `"Watch"`, `supported values: `, `"Observe"`},
		},
		"wrong type": {
			manifest("{checks: [{name: a, wait: soon, prometheus: {" + prometheus + "}}]}"), []string{"spec.checks[0].wait", "boolean"},
		},
		"broken rule": {
			manifest("{checks: [{name: a, prometheus: {" + prometheus + ", failures: 9}}]}"),
			[]string{"spec.checks[0]", "failures is at most count"},
		},
		"entry twice": {manifest("{checks: [{name: a, altershield: {}}, {name: a, altershield: {}}]}"), []string{"spec.checks[1]", "Duplicate"}},
		"key twice":   {manifest("{mode: Observe, mode: Enforce}"), []string{`"mode" already set`, "one DefensePolicy"}},
		"no name":     {strings.Replace(manifest("{}"), "name: slow, ", "", 1), []string{"metadata.name", "Required"}},
		"another kind": {
			strings.Replace(manifest("{}"), "DefensePolicy", "DefenseEndpoint", 1),
			[]string{`"DefenseEndpoint"`, "one DefensePolicy"},
		},
		"another version": {
			strings.Replace(manifest("{}"), "v1alpha1", "v1", 1), []string{`"app.ops.cloud.alipay.com/v1"`, "one DefensePolicy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSimulating(t, reported, "")
			s.file, s.In = "-", strings.NewReader(tt.manifest)
			p, err := s.policyOf(t.Context(), nil, nil)
			if (err != nil) != (tt.wants != nil) {
				t.Fatal(err)
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("without %q: %v", want, err)
				}
			}
			if err == nil && p.Namespace != "shop" {
				t.Errorf("in the namespace %s", p.Namespace)
			}
			if name != "valid" || err != nil {
				return
			}
			c := p.Spec.Checks[0]
			got := []any{p.Spec.Mode, c.Stage, c.Mode, c.Deadline.Duration, c.Prometheus.Interval.Duration, c.Prometheus.Count, c.Prometheus.Empty,
				p.Spec.Checks[1].PodHealth.MaxFailedPods.String()}
			want := []any{v1alpha1.ModeEnforce, v1alpha1.StageBatchPost, v1alpha1.ModeEnforce, 15 * time.Minute, 30 * time.Second, int32(4),
				v1alpha1.EmptyNoData, "0"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error("defaults:", diff)
			}
		})
	}
}

// TestSimulateCommand runs the command before the operator is installed.
func TestSimulateCommand(t *testing.T) {
	now := time.Now()
	_, pods := webHistory(now)
	server := pastServer(t, now, pods)
	cluster := hostileCluster(map[string]client.Object{
		"deployments": &appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web", Labels: map[string]string{"app": "web"}},
		},
		"replicasets": replicaSetOf("b", now.Add(-4*time.Hour), "2", ""),
		"namespaces":  &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
	}, nil)
	file := newSimulating(t, now, "").file
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-f", file, "--prometheus", server.URL}, 0, "· deployment/web 2: compare: no version succeeded before this one\n"},
		{[]string{"-f", file, "--prometheus", server.URL, "-o", "jsonpath={.summary.releases} {.releases[0].class}"}, 0, "1 NotJudged"},
		{[]string{"-f", file, "--prometheus", server.URL, "--since", "1h"}, 0, "There is no release that the policy selects since"},
		{nil, 1, "give the name of a policy, or -f FILE"},
		{[]string{"no-worse", "-f", file}, 1, "give the name of a policy, or -f FILE"},
		{[]string{"no-worse", "--since", "0"}, 1, "give hours or days"},
		{[]string{"no-worse", "--prometheus-token-file", file}, 1, "give the URL of Prometheus, too"},
		{[]string{"-f", file + "x"}, 1, "no such file"},
		{[]string{"no-worse"}, 1, "there is no DefensePolicy no-worse in shop or"},
		{[]string{"-f", file, "--prometheus", "localhost"}, 1, `--prometheus "localhost" is no URL`},
	} {
		code, out, errs := runAt(t, cluster, append([]string{"simulate"}, tt.args...)...)
		if code != tt.code || !strings.Contains(out+errs, tt.want) {
			t.Errorf("%v: exit code %d\n%s%s", tt.args, code, out, errs)
		}
	}
}
