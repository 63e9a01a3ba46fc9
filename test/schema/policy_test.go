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

package schema

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// policyOf returns a policy with this spec, as a user writes it.
func policyOf(name, spec string) *unstructured.Unstructured {
	o := map[string]any{}
	Expect(yaml.UnmarshalStrict([]byte("spec:\n"+indent(spec)), &o)).To(Succeed())
	p := &unstructured.Unstructured{Object: o}
	p.SetAPIVersion(v1alpha1.GroupVersion.String())
	p.SetKind("DefensePolicy")
	p.SetNamespace("default")
	p.SetName(name)
	return p
}

func indent(s string) string { return "  " + strings.ReplaceAll(s, "\n", "\n  ") }

// checkOf returns the spec of a policy with one check.
func checkOf(check string) string { return "checks:\n- name: a\n" + indent(check) }

const theQuery = "prometheus: {endpointRef: {name: prom}, query: up, failWhen: value < 1.0}"

// compareOf returns a check of type compare with one metric, and more fields.
func compareOf(metric string, more ...string) string {
	return "compare: {endpointRef: {name: prom}, " + strings.Join(append(more, "metrics: [{name: a, "+metric+"}]"), ", ") + "}"
}

var _ = DescribeTable("policies that are accepted", func(ctx SpecContext, spec string) {
	Expect(api.Create(ctx, policyOf("policy", spec), client.DryRunAll)).To(Succeed())
},
	Entry("the least", checkOf("podHealth: {}")),
	Entry("all of podHealth", "mode: Observe\nworkloadSelector: {matchLabels: {app: web}}\nsuggestion: look at the logs\nonNoData: Fail\n"+
		checkOf("stage: BatchPost\nmode: Observe\ndelay: 10s\nwait: false\ndeadline: 20m\n"+
			"podHealth: {duration: 10m, maxRestarts: 0, maxReadinessLosses: 2, readyAtEnd: false, failOnOOM: false, maxFailedPods: 3, "+
			"compareOldPods: false}")),
	Entry("a percentage", checkOf("podHealth: {maxFailedPods: 10%}")),
	Entry("at once", checkOf("podHealth: {duration: 0s}")),
	Entry("a probe by HTTP", checkOf("probe: {http: {port: 8080}}")),
	Entry("all of a probe", "onError: Fail\n"+checkOf("timeout: 60s\nonError: Pass\n"+
		"probe: {target: Pods, http: {port: 65535, path: '/healthz?a=b', scheme: HTTPS, expect: 200-299}, "+
		"interval: 1s, successes: 60, failures: 1}")),
	Entry("a single status code", checkOf("probe: {http: {port: 8080, expect: '204'}}")),
	Entry("a range of one", checkOf("probe: {http: {port: 8080, expect: 204-204}}")),
	Entry("a probe by gRPC", checkOf("probe: {grpc: {port: 9000, service: shop.v1.Shop}}")),
	Entry("a probe before other checks", checkOf("stage: BatchPre\nprobe: {tcp: {port: 80}}")),
	Entry("rules for each pod before other checks", checkOf("stage: BatchPre\ncel: {forEach: Pod, rules: [{expression: 'true'}]}")),
	Entry("rules about a release that begins", checkOf("stage: ReleasePre\ncel: {rules: [{expression: 'true'}]}")),
	Entry("rules about a release at its end", checkOf("stage: ReleasePost\nwait: false\ncel: {rules: [{expression: 'true'}]}")),
	Entry("rules about a request to release", checkOf("stage: Admission\ncel: {rules: [{expression: 'true'}]}")),
	Entry("all of a check at admission",
		"onError: Fail\n"+checkOf("stage: Admission\nmode: Observe\ntimeout: 2s\nonError: Pass\nwait: true\n"+
			"cel: {rules: [{expression: 'true'}]}")),
	Entry("the default timeout", checkOf("timeout: 10s\nprobe: {tcp: {port: 80}}")),
	Entry("the server", checkOf("altershield: {}\nonError: Fail")),
	Entry("a probe of a Service at the end", checkOf("stage: ReleasePost\nprobe: {target: Service, service: web, http: {port: 80}}")),
	Entry("a probe of a Service", checkOf("probe: {target: Service, service: web, http: {port: 80}}")),
	Entry("a probe by TCP", checkOf("wait: false\nprobe: {tcp: {port: 5432}}")),
	Entry("a query", checkOf(theQuery)),
	Entry("a service", checkOf("service: {endpointRef: {name: gate}}")),
	Entry("a Job", checkOf("stage: ReleasePost\ndelay: 1m\nwait: false\njob: {cronJob: smoke.test}")),
	Entry("all of a service", checkOf("stage: ReleasePre\ntimeout: 60s\nservice: {endpointRef: {name: gate}, protocol: JSON, "+
		"invoke: Polling, parameters: {suite: smoke, 'a/b': ''}, failWhen: '!body.ok || status != 200'}")),
	Entry("all of a query", "onNoData: Fail\n"+checkOf("stage: ReleasePost\ndelay: 1m\nwait: false\ndeadline: 1h\ntimeout: 30s\n"+
		"prometheus: {endpointRef: {name: prom}, query: 'sum(rate(errors{pod=~\"$pods\"}[$range]))', failWhen: value > 0.05, "+
		"interval: 1m0s, count: 60, failures: 60, empty: Zero}")),
	Entry("a comparison with the time before the release", checkOf(compareOf("query: a, minChange: 1", "baseline: PreRelease"))),
	Entry("the least of a comparison", checkOf(compareOf("numerator: a, denominator: b"))),
	Entry("a comparison of a preset", checkOf("compare: {endpointRef: {name: prom}, presets: [Auto]}")),
	Entry("a comparison of all it may have", checkOf(compareOf("numerator: a, denominator: b", "presets: [Auto, cpu, memory, throttling, "+
		"istio-errors, istio-latency, istio-p99, otel-errors, otel-latency, jvm-gc]"))),
	Entry("all of a comparison", checkOf("deadline: 2h\nwait: false\n"+compareOf("query: a, direction: Either, minChangePercent: 10, "+
		"minChange: 5m, criticalChangePercent: 100", "window: 40m", "slice: 1m", "warmUp: 0s", "maxWindow: 1h", "falsePositivesPerMille: 1",
		"confirm: false"))),
	Entry("the least of cel", checkOf("cel: {rules: [{expression: 'true'}]}")),
	Entry("a hold beside checks", "hold: {until: FirstBatch}\n"+checkOf("podHealth: {}")),
	Entry("a freeze alone", "freezes: [{name: weekend, schedule: '0 16 * * 5', duration: 64h}]"),
	Entry("all of freezes",
		"mode: Observe\nfreezes: [{name: weekend, schedule: '0 16 * * FRI', duration: 744h, timeZone: America/Argentina/Buenos_Aires, "+
			"action: Warn}, {name: year-end, from: '2026-12-20T00:00:00+01:00', until: '2027-01-04T00:00:00+01:00', action: Deny}]"),
	Entry("a hold alone", "hold: {until: EveryBatch, maxDuration: 1m}"),
	Entry("a hold alone, and no checks", "hold: {until: FirstBatch, maxDuration: 2h}\nchecks: []"),
	Entry("a hold of nothing", "hold: {until: None}\n"+checkOf("podHealth: {}")),
	Entry("all of cel", "onError: Fail\n"+checkOf("mode: Observe\ndelay: 10s\nwait: false\ndeadline: 20m\n"+
		"cel: {forEach: Batch, variables: [{name: c, expression: 'pods[0]'}], "+
		"rules: [{expression: 'has(variables.c.spec)', message: no spec}]}")),
)

var _ = DescribeTable("policies that are refused", func(ctx SpecContext, name, spec string, wants ...string) {
	err := api.Create(ctx, policyOf(name, spec), client.DryRunAll)
	Expect(err).To(HaveOccurred())
	for _, want := range wants {
		Expect(err.Error()).To(ContainSubstring(want))
	}
},
	Entry("no checks", "p", "checks: []", "spec.checks", "a policy has checks, a hold, freezes, or notify"),
	Entry("nothing", "p", "mode: Enforce", "spec.checks", "a policy has checks, a hold, freezes, or notify"),
	Entry("a hold of nothing, and no checks", "p", "hold: {}", "spec.checks", "set hold.until to FirstBatch or EveryBatch"),
	Entry("a hold of unknown batches", "p", "hold: {until: LastBatch}\n"+checkOf("podHealth: {}"), "spec.hold.until",
		"Unsupported value"),
	Entry("a hold that is too short", "p", "hold: {until: FirstBatch, maxDuration: 59s}", "spec.hold.maxDuration", "from 1m to 2h"),
	Entry("a hold that is too long", "p", "hold: {until: FirstBatch, maxDuration: 2h1s}", "spec.hold.maxDuration", "from 1m to 2h"),
	Entry("a hold without a unit", "p", "hold: {until: FirstBatch, maxDuration: '30'}", "spec.hold"),
	Entry("a check of no type", "p", checkOf("wait: true"), "spec.checks[0]", "a check has a type"),
	Entry("a comparison at the end", "p", checkOf("stage: ReleasePost\n"+compareOf("query: a, minChange: 1")),
		"spec.checks[0].stage", "compare needs the pods of a batch"),
	Entry("a comparison of a whole release", "p", checkOf("stage: ReleasePost\n"+compareOf("query: a, minChange: 1", "baseline: PreRelease")),
		"spec.checks[0].stage", "compare needs the pods of a batch"),
	Entry("an unknown baseline", "p", checkOf(compareOf("query: a, minChange: 1", "baseline: History")), "compare.baseline",
		"supported values"),
	Entry("a comparison of nothing", "p", checkOf("compare: {endpointRef: {name: prom}, metrics: []}"), "compare.metrics", "at least 1"),
	Entry("a comparison without metrics", "p", checkOf("compare: {endpointRef: {name: prom}}"), "compare.presets", "give presets or metrics"),
	Entry("no preset", "p", checkOf("compare: {endpointRef: {name: prom}, presets: []}"), "compare.presets", "at least 1"),
	Entry("an unknown preset", "p", checkOf("compare: {endpointRef: {name: prom}, presets: [nginx-errors]}"), "compare.presets[0]",
		"Unsupported value"),
	Entry("a preset twice", "p", checkOf("compare: {endpointRef: {name: prom}, presets: [cpu, cpu]}"), "compare.presets[1]",
		"Duplicate value"),
	Entry("more presets and metrics than 12", "p", checkOf(compareOf("numerator: a, denominator: b", "presets: [Auto, cpu, memory, "+
		"throttling, istio-errors, istio-latency, istio-p99, otel-errors, otel-latency, otel-rpc-errors, jvm-gc]")), "compare.presets",
		"at most 12 together"),
	Entry("a metric without a query", "p", checkOf(compareOf("minChange: 1")), "metrics[0]", "either query, or numerator and denominator"),
	Entry("a metric of both kinds", "p", checkOf(compareOf("query: a, numerator: b, denominator: c, minChange: 1")), "metrics[0]",
		"either query, or numerator and denominator"),
	Entry("half a share", "p", checkOf(compareOf("numerator: b")), "metrics[0]", "either query, or numerator and denominator"),
	Entry("a value without a least change", "p", checkOf(compareOf("query: a")), "metrics[0].minChange", "give the least change"),
	Entry("a share that falls", "p", checkOf(compareOf("numerator: b, denominator: c, direction: Decrease")), "metrics[0].direction",
		"only an increase is worse"),
	Entry("two metrics of one name", "p",
		checkOf("compare: {endpointRef: {name: prom}, metrics: [{name: a, numerator: b, denominator: c}, "+
			"{name: a, numerator: b, denominator: c}]}"),
		"metrics[1]", "Duplicate value"),
	Entry("slices that are too long", "p", checkOf(compareOf("query: a, minChange: 1", "window: 4m")),
		"compare.slice", "at most a fifth of window"),
	Entry("slices that are too short", "p", checkOf(compareOf("query: a, minChange: 1", "slice: 9s")), "compare.slice", "at least 10s"),
	Entry("no time for confirmation", "p", checkOf(compareOf("query: a, minChange: 1", "maxWindow: 7m")),
		"compare.maxWindow", "one and a half"),
	Entry("a window that is too short", "p", checkOf(compareOf("query: a, minChange: 1", "window: 59s", "slice: 10s")), "compare.window",
		"from 1m to 40m"),
	Entry("a comparison that is too long for its deadline", "p", checkOf("deadline: 11m\n"+compareOf("query: a, minChange: 1")),
		"spec.checks[0].deadline", "at least 1m longer"),
	Entry("no false failure", "p", checkOf(compareOf("query: a, minChange: 1", "falsePositivesPerMille: 101")), "falsePositivesPerMille"),
	Entry("a query at admission", "p", checkOf("stage: Admission\n"+theQuery), "spec.checks[0].stage", "set stage to ReleasePre or later"),
	Entry("a query without an endpoint", "p", checkOf("prometheus: {query: up, failWhen: value > 1}"), "prometheus.endpointRef", "Required"),
	Entry("a query of nothing", "p", checkOf("prometheus: {endpointRef: {name: a}, query: '', failWhen: a}"), "prometheus.query"),
	Entry("a query that is too long", "p", checkOf("prometheus: {endpointRef: {name: a}, failWhen: a, query: "+strings.Repeat("a", 4097)+"}"),
		"prometheus.query", "Too long"),
	Entry("an endpoint in another namespace", "p", checkOf("prometheus: {endpointRef: {name: a/b}, query: up, failWhen: a}"),
		"endpointRef.name"),
	Entry("more failures than evaluations", "p",
		checkOf("prometheus: {endpointRef: {name: a}, query: up, failWhen: a, count: 2, failures: 3}"),
		"prometheus.failures", "failures is at most count"),
	Entry("too many evaluations", "p", checkOf("prometheus: {endpointRef: {name: a}, query: up, failWhen: a, count: 61}"), "prometheus.count"),
	Entry("evaluations without a pause", "p", checkOf("prometheus: {endpointRef: {name: a}, query: up, failWhen: a, interval: 4s}"),
		"prometheus.interval"),
	Entry("evaluations once an hour", "p", checkOf("prometheus: {endpointRef: {name: a}, query: up, failWhen: a, interval: 1h}"),
		"prometheus.interval"),
	Entry("an unknown meaning of nothing", "p", checkOf("prometheus: {endpointRef: {name: a}, query: up, failWhen: a, empty: Fail}"),
		"prometheus.empty", "Unsupported value"),
	Entry("a service without an endpoint", "p", checkOf("service: {}"), "service.endpointRef", "Required"),
	Entry("a service at admission", "p", checkOf("stage: Admission\nservice: {endpointRef: {name: gate}}"), "spec.checks[0].stage",
		"the request of a release does not wait for a service"),
	Entry("JSON without a rule", "p", checkOf("service: {endpointRef: {name: gate}, protocol: JSON}"), "service.failWhen",
		"protocol JSON needs failWhen"),
	Entry("a rule beside verdicts", "p", checkOf("service: {endpointRef: {name: gate}, failWhen: 'true'}"), "service.failWhen",
		"set failWhen exactly for protocol JSON"),
	Entry("a protocol that is cut", "p", checkOf("service: {endpointRef: {name: gate}, protocol: FlaggerWebhook}"), "service.protocol"),
	Entry("a callback", "p", checkOf("service: {endpointRef: {name: gate}, invoke: Callback}"), "service.invoke"),
	Entry("an address in a policy", "p", checkOf("service: {endpointRef: {name: 'http://a'}}"), "service.endpointRef.name"),
	Entry("a parameter that is no text", "p", checkOf("service: {endpointRef: {name: gate}, parameters: {a: 1}}"), "service.parameters"),
	Entry("a long parameter", "p", checkOf("service: {endpointRef: {name: gate}, parameters: {a: "+strings.Repeat("a", 1025)+"}}"),
		"service.parameters", "Too long"),
	Entry("a long name of a parameter", "p", checkOf("service: {endpointRef: {name: gate}, parameters: {"+strings.Repeat("a", 64)+": a}}"),
		"service.parameters", "at most 63"),
	Entry("a service later than its deadline", "p", checkOf("delay: 1m\ndeadline: 70s\nservice: {endpointRef: {name: gate}}"),
		"spec.checks[0].deadline", "must be shorter than deadline"),
	Entry("a Job without a CronJob", "p", checkOf("job: {}"), "job.cronJob", "Required"),
	Entry("a Job of another namespace", "p", checkOf("job: {cronJob: other/smoke}"), "job.cronJob", "should match"),
	Entry("a Job at admission", "p", checkOf("stage: Admission\njob: {cronJob: smoke}"), "spec.checks[0].stage",
		"the request of a release does not wait for a Job"),
	Entry("a Job later than its deadline", "p", checkOf("delay: 1m\ndeadline: 1m\njob: {cronJob: smoke}"), "spec.checks[0].deadline",
		"must be shorter than deadline"),
	Entry("alerts without an endpoint", "p", checkOf("alerts: {}"), "alerts.endpointRef", "Required"),
	Entry("alerts before there are pods", "p", checkOf("stage: BatchPre\nalerts: {endpointRef: {name: a}}"), "spec.checks[0].stage",
		"set it to BatchPost or ReleasePost"),
	Entry("alerts at admission", "p", checkOf("stage: Admission\nalerts: {endpointRef: {name: a}}"), "spec.checks[0].stage"),
	Entry("alerts for two hours", "p", checkOf("alerts: {endpointRef: {name: a}, duration: 2h}"), "alerts.duration", "from 1m to 1h"),
	Entry("alerts asked too often", "p", checkOf("alerts: {endpointRef: {name: a}, duration: 1h, interval: 29s}"), "alerts.interval",
		"at least a 120th of it"),
	Entry("alerts asked once", "p", checkOf("alerts: {endpointRef: {name: a}, duration: 1m, interval: 2m}"), "alerts.interval",
		"at most duration"),
	Entry("a matcher of nothing", "p", checkOf("alerts: {endpointRef: {name: a}, matchers: ['']}"), "alerts.matchers[0]"),
	Entry("too many matchers", "p", checkOf("alerts: {endpointRef: {name: a}, matchers: ["+strings.Repeat(`'a="b"',`, 17)+"]}"),
		"alerts.matchers", "at most 16"),
	Entry("the server, in observe mode", "p", checkOf("mode: Observe\naltershield: {}"), "spec.checks[0].altershield",
		"OpsConfigInfo observe"),
	Entry("the server, not waited for", "p", checkOf("wait: false\naltershield: {}"), "spec.checks[0].altershield", "only name and onError"),
	Entry("the server twice", "p", "checks: [{name: a, altershield: {}}, {name: b, altershield: {}}]", "spec.checks",
		"at most one check of type altershield"),
	Entry("the health of pods at the end", "p", checkOf("stage: ReleasePost\npodHealth: {}"), "spec.checks[0].stage", "set it to BatchPost"),
	Entry("rules for each pod before there are any", "p", checkOf("stage: ReleasePre\ncel: {forEach: Pod, rules: [{expression: 'true'}]}"),
		"spec.checks[0].cel.forEach", "leave forEach out"),
	Entry("a probe of pods before there are any", "p", checkOf("stage: ReleasePre\nprobe: {tcp: {port: 80}}"), "spec.checks[0].stage",
		"set stage to BatchPre or BatchPost"),
	Entry("a probe of pods at the end", "p", checkOf("stage: ReleasePost\nprobe: {tcp: {port: 80}}"), "spec.checks[0].stage",
		"with target Service"),
	Entry("a schedule without a duration", "p", "freezes: [{name: a, schedule: '0 16 * * 5'}]", "spec.freezes[0].duration",
		"belong together"),
	Entry("a start without an end", "p", "freezes: [{name: a, from: '2026-12-20T00:00:00Z'}]", "spec.freezes[0].until", "belong together"),
	Entry("a freeze of no time", "p", "freezes: [{name: a}]", "spec.freezes[0]", "give schedule with duration, or from with until"),
	Entry("a freeze of two times", "p",
		"freezes: [{name: a, schedule: '0 16 * * 5', duration: 1h, from: '2026-12-20T00:00:00Z', until: '2026-12-21T00:00:00Z'}]",
		"spec.freezes[0]", "give schedule with duration, or from with until"),
	Entry("a freeze turned round", "p", "freezes: [{name: a, from: '2026-12-21T00:00:00Z', until: '2026-12-20T00:00:00Z'}]",
		"spec.freezes[0].until", "until is later than from"),
	Entry("a freeze of two years", "p", "freezes: [{name: a, from: '2026-12-21T00:00:00Z', until: '2028-12-20T00:00:00Z'}]",
		"spec.freezes[0].until", "by at most 366 days"),
	Entry("a freeze for a moment", "p", "freezes: [{name: a, schedule: '0 16 * * 5', duration: 59s}]",
		"spec.freezes[0].duration", "from 1m to 744h"),
	Entry("a freeze for too long", "p", "freezes: [{name: a, schedule: '0 16 * * 5', duration: 745h}]",
		"spec.freezes[0].duration", "from 1m to 744h"),
	Entry("six cron fields", "p", "freezes: [{name: a, schedule: '0 0 16 * * 5', duration: 1h}]", "spec.freezes[0].schedule"),
	Entry("a word for a schedule", "p", "freezes: [{name: a, schedule: '@daily', duration: 1h}]", "spec.freezes[0].schedule"),
	Entry("a zone in a schedule", "p", "freezes: [{name: a, schedule: 'TZ=UTC 0 16 * * 5', duration: 1h}]", "spec.freezes[0].schedule"),
	Entry("a path for a zone", "p", "freezes: [{name: a, schedule: '0 16 * * 5', duration: 1h, timeZone: ../etc}]",
		"spec.freezes[0].timeZone"),
	Entry("a freeze twice", "p", "freezes: [{name: a, schedule: '0 16 * * 5', duration: 1h}, {name: a, schedule: '0 1 * * 5', duration: 1h}]",
		"Duplicate value"),
	Entry("notifications about nothing", "p", "notify: [{endpointRef: {name: am}, events: []}]", "spec.notify[0].events"),
	Entry("notifications about anything", "p", "notify: [{endpointRef: {name: am}}]", "spec.notify[0].events", "Required"),
	Entry("notifications about a pass", "p", "notify: [{endpointRef: {name: am}, events: [Passed]}]", "spec.notify[0].events[0]",
		"FreezeBroken"),
	Entry("notifications without an endpoint", "p", "notify: [{events: [Failed]}]", "spec.notify[0].endpointRef"),
	Entry("notifications by five endpoints", "p", "notify:"+strings.Repeat("\n- {endpointRef: {name: am}, events: [Failed]}", 5),
		"spec.notify"),
	Entry("a name that is none", "p", "checks: [{name: A_B, podHealth: {}}]", "spec.checks[0].name"),
	Entry("a name twice", "p", "checks: [{name: a, podHealth: {}}, {name: a, podHealth: {}}]", "Duplicate value"),
	Entry("a check that is disabled", "p", checkOf("mode: Disabled\npodHealth: {}"), "spec.checks[0].mode", "leave the check out"),
	Entry("a mode that is none", "p", "mode: Warn\n"+checkOf("podHealth: {}"), "spec.mode"),
	Entry("a stage that is none", "p", checkOf("stage: Later\npodHealth: {}"), "spec.checks[0].stage"),
	Entry("the health of pods before there are any", "p", checkOf("stage: Admission\npodHealth: {}"), "spec.checks[0].stage",
		"set it to BatchPost"),
	Entry("a probe of pods at admission", "p", checkOf("stage: Admission\nprobe: {tcp: {port: 80}}"), "spec.checks[0].stage",
		"set stage to BatchPre or BatchPost"),
	Entry("the server at admission", "p", checkOf("stage: Admission\naltershield: {}"), "spec.checks[0].altershield",
		"only name and onError"),
	Entry("rules for each pod at admission", "p", checkOf("stage: Admission\ncel: {forEach: Pod, rules: [{expression: 'true'}]}"),
		"spec.checks[0].cel.forEach", "leave forEach out"),
	Entry("admission that waits too long", "p", checkOf("stage: Admission\ntimeout: 3s\ncel: {rules: [{expression: 'true'}]}"),
		"spec.checks[0].timeout", "set timeout to 2s or 1s, or leave it out"),
	Entry("admission in the background", "p", checkOf("stage: Admission\nwait: false\ncel: {rules: [{expression: 'true'}]}"),
		"spec.checks[0].wait", "leave wait out"),
	Entry("admission later", "p", checkOf("stage: Admission\ndelay: 1s\ncel: {rules: [{expression: 'true'}]}"), "spec.checks[0].delay",
		"leave delay out"),
	Entry("admission with a deadline", "p", checkOf("stage: Admission\ndeadline: 10s\ncel: {rules: [{expression: 'true'}]}"),
		"spec.checks[0].deadline", "leave deadline out, and set timeout"),
	Entry("admission that fails closed", "p", checkOf("stage: Admission\nonError: Fail\ncel: {rules: [{expression: 'true'}]}"),
		"spec.checks[0].onError", "leave onError out, or set stage to ReleasePre"),
	Entry("a check longer than its deadline", "p", checkOf("deadline: 1m\npodHealth: {duration: 50s}\ndelay: 10s"), "spec.checks[0].deadline",
		"must be shorter than deadline"),
	Entry("a check longer than the default deadline", "p", checkOf("podHealth: {duration: 15m}"), "spec.checks[0].deadline"),
	Entry("a check that is too long", "p", checkOf("deadline: 2h\npodHealth: {duration: 61m}"), "podHealth.duration", "0s to 1h"),
	Entry("a duration without a unit", "p", checkOf("podHealth: {duration: '5'}"), "spec.checks[0]"),
	Entry("a negative duration", "p", checkOf("podHealth: {duration: -5s}"), "podHealth.duration"),
	Entry("a delay that is too long", "p", checkOf("delay: 61m\ndeadline: 2h\npodHealth: {}"), "spec.checks[0].delay"),
	Entry("a deadline that is too long", "p", checkOf("deadline: 3h\npodHealth: {}"), "spec.checks[0].deadline", "1s to 2h"),
	Entry("more than all pods", "p", checkOf("podHealth: {maxFailedPods: 101%}"), "maxFailedPods", "should match '^(100|[1-9]?[0-9])%$'"),
	Entry("no percent sign", "p", checkOf(`podHealth: {maxFailedPods: "10"}`), "maxFailedPods", "should match"),
	Entry("fewer than no pods", "p", checkOf("podHealth: {maxFailedPods: -1}"), "maxFailedPods", "from 0 to 5000"),
	Entry("more pods than counted", "p", checkOf("podHealth: {maxFailedPods: 5001}"), "maxFailedPods", "from 0 to 5000"),
	Entry("two types", "p", checkOf("podHealth: {}\nprobe: {tcp: {port: 80}}"), "spec.checks[0]", "and only one"),
	Entry("a probe of nothing", "p", checkOf("probe: {}"), "spec.checks[0].probe", "exactly one of http, grpc and tcp"),
	Entry("a probe of two", "p", checkOf("probe: {tcp: {port: 80}, grpc: {port: 81}}"), "spec.checks[0].probe",
		"exactly one of http, grpc and tcp"),
	Entry("a probe of something else", "p", checkOf("probe: {target: Node, tcp: {port: 80}}"), "spec.checks[0].probe.target"),
	Entry("a probe of a Service without its name", "p", checkOf("probe: {target: Service, tcp: {port: 80}}"), "spec.checks[0].probe.service",
		"give both, or neither"),
	Entry("a probe of pods with the name of a Service", "p", checkOf("probe: {service: web, tcp: {port: 80}}"),
		"spec.checks[0].probe.service",
		"give both, or neither"),
	Entry("a probe of a Service of another namespace", "p", checkOf("probe: {target: Service, service: other/web, tcp: {port: 80}}"),
		"spec.checks[0].probe.service"),
	Entry("a probe of a Service by its domain", "p", checkOf("probe: {target: Service, service: web.other.svc, tcp: {port: 80}}"),
		"spec.checks[0].probe.service"),
	Entry("a probe of no port", "p", checkOf("probe: {http: {path: /}}"), "probe.http.port"),
	Entry("a probe of port 0", "p", checkOf("probe: {tcp: {port: 0}}"), "probe.tcp.port"),
	Entry("a probe of port 65536", "p", checkOf("probe: {grpc: {port: 65536}}"), "probe.grpc.port"),
	Entry("a probe of a port by name", "p", checkOf("probe: {tcp: {port: http}}"), "probe.tcp.port"),
	Entry("a path that is a URL", "p", checkOf("probe: {http: {port: 80, path: 'http://example.com/'}}"), "probe.http.path"),
	Entry("a path of two lines", "p", checkOf("probe: {http: {port: 80, path: \"/a\\r\\nHost: b\"}}"), "probe.http.path"),
	Entry("a scheme that is none", "p", checkOf("probe: {http: {port: 80, scheme: FTP}}"), "probe.http.scheme"),
	Entry("a status code that is none", "p", checkOf("probe: {http: {port: 80, expect: '700'}}"), "probe.http.expect"),
	Entry("a range that is none", "p", checkOf("probe: {http: {port: 80, expect: 200-}}"), "probe.http.expect"),
	Entry("a range the other way round", "p", checkOf("probe: {http: {port: 80, expect: 399-200}}"), "probe.http.expect",
		"from a lower status code"),
	Entry("an interval that is too short", "p", checkOf("probe: {tcp: {port: 80}, interval: 999ms}"), "probe.interval", "1s to 5m"),
	Entry("too many successes", "p", checkOf("probe: {tcp: {port: 80}, successes: 61}"), "probe.successes"),
	Entry("no failures", "p", checkOf("probe: {tcp: {port: 80}, failures: 0}"), "probe.failures"),
	Entry("a timeout that is too short", "p", checkOf("timeout: 500ms\nprobe: {tcp: {port: 80}}"), "spec.checks[0].timeout", "1s to 60s"),
	Entry("a timeout that is too long", "p", checkOf("timeout: 61s\nprobe: {tcp: {port: 80}}"), "spec.checks[0].timeout", "1s to 60s"),
	Entry("a probe longer than its deadline", "p", checkOf("deadline: 40s\nprobe: {tcp: {port: 80}}"), "spec.checks[0].deadline",
		"must be shorter than deadline"),
	Entry("an unknown effect of errors", "p", "onError: Maybe\n"+checkOf("podHealth: {}"), "spec.onError"),
	Entry("cel beside another type", "p", checkOf("podHealth: {}\ncel: {rules: [{expression: 'true'}]}"), "spec.checks[0]",
		"a check has a type, and only one: podHealth, cel, probe, prometheus, alerts, compare, service, job or altershield"),
	Entry("cel later than its deadline", "p", checkOf("delay: 1m\ndeadline: 1m\ncel: {rules: [{expression: 'true'}]}"),
		"spec.checks[0].deadline", "must be shorter than deadline"),
	Entry("cel without rules", "p", checkOf("cel: {rules: []}"), "spec.checks[0].cel.rules", "at least 1"),
	Entry("cel of too many rules", "p", checkOf("cel: {rules: ["+strings.Repeat("{expression: 'true'},", 17)+"]}"),
		"spec.checks[0].cel.rules",
		"at most 16"),
	Entry("cel of too many variables", "p", checkOf("cel: {rules: [{expression: 'true'}], variables: ["+
		"{name: a, expression: 'true'},{name: b, expression: 'true'},{name: c, expression: 'true'},"+
		"{name: d, expression: 'true'},{name: e, expression: 'true'},{name: f, expression: 'true'},"+
		"{name: g, expression: 'true'},{name: h, expression: 'true'},{name: i, expression: 'true'}]}"),
		"spec.checks[0].cel.variables", "at most 8"),
	Entry("an expression that is too long", "p", checkOf("cel: {rules: [{expression: '"+strings.Repeat("a", 4097)+"'}]}"),
		"spec.checks[0].cel.rules[0].expression"),
	Entry("a message that is too long", "p", checkOf("cel: {rules: [{expression: 'true', message: '"+strings.Repeat("a", 1025)+"'}]}"),
		"spec.checks[0].cel.rules[0].message"),
	Entry("a variable that is none", "p", checkOf("cel: {rules: [{expression: 'true'}], variables: [{name: a-b, expression: '1'}]}"),
		"spec.checks[0].cel.variables[0].name"),
	Entry("a variable twice", "p",
		checkOf("cel: {rules: [{expression: 'true'}], variables: [{name: a, expression: '1'}, {name: a, expression: '1'}]}"), "Duplicate value"),
	Entry("cel for each container", "p", checkOf("cel: {forEach: Container, rules: [{expression: 'true'}]}"), "spec.checks[0].cel.forEach"),
	Entry("a long name", strings.Repeat("p", 64), checkOf("podHealth: {}"), "metadata.name", "at most 63"),
)

var _ = Describe("the samples of policies", func() {
	It("are accepted as they are", func(ctx SpecContext) {
		files, err := filepath.Glob(filepath.Join("..", "..", "config", "samples", "policies", "*.yaml"))
		Expect(err).NotTo(HaveOccurred())
		Expect(len(files)).To(BeNumerically(">", 5))
		for _, file := range files {
			data, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			o := &unstructured.Unstructured{}
			Expect(yaml.UnmarshalStrict(data, &o.Object)).To(Succeed(), file)
			o.SetNamespace("default") // The namespace of the operator does not exist.
			Expect(api.Create(ctx, o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))).To(Succeed(), file)
			if o.GetKind() == "DefensePolicy" {
				p := &v1alpha1.DefensePolicy{}
				Expect(yaml.UnmarshalStrict(data, p)).To(Succeed(), file)
				Expect(policy.Accepted(p, p.Namespace)).To(BeEmpty(), file)
			}
		}
	})
})

var _ = Describe("the default policy", func() {
	It("is accepted, and the API server adds the defaults", func(ctx SpecContext) {
		p := policy.Default("default")
		Expect(api.Create(ctx, p)).To(Succeed())
		DeferCleanup(api.Delete, p)
		Expect(policy.Accepted(p, "default")).To(BeEmpty())
		selected := policy.Select([]v1alpha1.DefensePolicy{*p}, "default", policy.Workload{Namespace: "shop"})
		Expect(selected.Checks).To(HaveLen(1))
		Expect(selected.Checks[0].Background).To(BeTrue())
		Expect(p.Spec.Checks[0].Deadline).To(HaveValue(Equal(metav1.Duration{Duration: selected.Checks[0].Deadline})))
		Expect(p.Spec.Checks[0].PodHealth.ReadyAtEnd).To(HaveValue(BeTrue()))
	})
})

var _ = Describe("a policy that holds", func() {
	It("gets the defaults", func(ctx SpecContext) {
		p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "holds"}}
		p.Spec.Hold = &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch}
		without := policy.Select([]v1alpha1.DefensePolicy{*p}, "default", policy.Workload{Namespace: "shop"})
		Expect(api.Create(ctx, p)).To(Succeed())
		DeferCleanup(api.Delete, p)
		Expect(p.Spec.Hold.MaxDuration).To(HaveValue(Equal(metav1.Duration{Duration: without.HoldAtMost})))
		p.Status.InForce, p.Status.InForceGeneration = p.Spec.DeepCopy(), p.Generation
		Expect(api.Status().Update(ctx, p)).To(Succeed(), "the status has the policy in force, too")
		Expect(policy.Select([]v1alpha1.DefensePolicy{*p}, "default", policy.Workload{Namespace: "shop"}).Hold).To(Equal(without.Hold))
	})
	It("may be empty", func(ctx SpecContext) {
		o := policyOf("holds-not", "hold: {}\n"+checkOf("podHealth: {}"))
		Expect(api.Create(ctx, o, client.DryRunAll)).To(Succeed())
		until, _, err := unstructured.NestedString(o.Object, "spec", "hold", "until")
		Expect(until, err).To(Equal(string(v1alpha1.HoldNone)))
	})
})
