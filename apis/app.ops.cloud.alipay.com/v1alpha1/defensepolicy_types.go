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

// More than 500 lines: a kind has one file, and most lines are comments of fields.

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PolicyMode is the effect of a policy, or of one check of it.
// +kubebuilder:validation:Enum=Enforce;Observe;Disabled
type PolicyMode string

const (
	// ModeEnforce means that a failed check fails the pods or the release.
	ModeEnforce PolicyMode = "Enforce"
	// ModeObserve means that events and metrics report a failed check, and nothing
	// else happens.
	ModeObserve PolicyMode = "Observe"
	// ModeDisabled means that nothing is checked.
	ModeDisabled PolicyMode = "Disabled"
)

// PolicyStage is the point of a release at which a check begins.
// +kubebuilder:validation:Enum=Admission;ReleasePre;BatchPre;BatchPost;ReleasePost
type PolicyStage string

const (
	// StageAdmission is the request of the release. A failed check denies it.
	StageAdmission PolicyStage = "Admission"
	// StageReleasePre is the start of the release. Batches wait for the check.
	StageReleasePre PolicyStage = "ReleasePre"
	// StageBatchPre is the time when the pods of a batch have finished. The checks
	// at BatchPost wait for the check.
	StageBatchPre PolicyStage = "BatchPre"
	// StageBatchPost is the time after the checks at BatchPre.
	StageBatchPost PolicyStage = "BatchPost"
	// StageReleasePost is the time when all pods have passed. The success of the
	// release waits for the check.
	StageReleasePost PolicyStage = "ReleasePost"
)

// OnSilence is the effect of a check without a verdict.
// +kubebuilder:validation:Enum=Pass;Fail;Default
type OnSilence string

const (
	// SilencePasses means that the pods pass.
	SilencePasses OnSilence = "Pass"
	// SilenceFails means that the pods fail.
	SilenceFails OnSilence = "Fail"
	// SilenceDefault means that the setting silence decides.
	SilenceDefault OnSilence = "Default"
)

// HoldUntil selects the batches that a rollout waits for.
// +kubebuilder:validation:Enum=None;FirstBatch;EveryBatch
type HoldUntil string

const (
	// HoldNone means that the rollout does not wait.
	HoldNone HoldUntil = "None"
	// HoldFirstBatch means that the rollout waits for the first batch, and then
	// continues at its own pace.
	HoldFirstBatch HoldUntil = "FirstBatch"
	// HoldEveryBatch means that the rollout waits each time it has replaced as
	// many pods as its strategy allows.
	HoldEveryBatch HoldUntil = "EveryBatch"
)

// Holds reports whether a rollout waits at all.
func (h HoldUntil) Holds() bool { return h == HoldFirstBatch || h == HoldEveryBatch }

// DefensePolicySpec is a set of checks of releases. A policy has at least one
// check, a hold, a freeze, or a notification.
//
// +kubebuilder:validation:XValidation:rule="has(self.checks) && self.checks.size() > 0 || has(self.hold) && self.hold.until != 'None' || has(self.freezes) && self.freezes.size() > 0 || has(self.notify) && self.notify.size() > 0",message="a policy has checks, a hold, freezes, or notify: give at least one check, set hold.until to FirstBatch or EveryBatch, or give a freeze or an endpoint to notify",fieldPath=".checks"
type DefensePolicySpec struct {
	// Effect of all checks of the policy.
	// +optional
	// +kubebuilder:default=Enforce
	Mode PolicyMode `json:"mode,omitempty"`
	// Selector of workloads by their labels; empty selects all.
	// +optional
	WorkloadSelector *metav1.LabelSelector `json:"workloadSelector,omitempty"`
	// Selector of namespaces by their labels; empty selects all that are enrolled.
	// It counts in the operator's namespace only: other policies apply to their
	// own namespace.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Text for the engineer, appended to the message of a failure.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Suggestion string `json:"suggestion,omitempty"`
	// Effect of a check that is inconclusive or found no data.
	// +optional
	// +kubebuilder:default=Default
	OnNoData OnSilence `json:"onNoData,omitempty"`
	// Effect of a check that could not be measured by its deadline.
	// +optional
	// +kubebuilder:default=Default
	OnError OnSilence `json:"onError,omitempty"`
	// Hold of the rollout. The strictest hold counts: of all policies in mode
	// Enforce, and of the setting holding.
	// +optional
	Hold *PolicyHold `json:"hold,omitempty"`
	// Times in which releases are denied, or warned about.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Freezes []PolicyFreeze `json:"freezes,omitempty"`
	// Alertmanagers that get alerts about the releases of the selected workloads.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	Notify []PolicyNotify `json:"notify,omitempty"`
	// Checks of each selected release. At most one has the type altershield.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="self.filter(c, has(c.altershield)).size() <= 1",message="a policy has at most one check of type altershield"
	Checks []PolicyCheck `json:"checks,omitempty"`
}

// PolicyHold makes a rollout wait until its new pods are verified by all
// checks that apply to them.
//
// +kubebuilder:validation:XValidation:rule="duration(self.maxDuration) >= duration('1m') && duration(self.maxDuration) <= duration('2h')",message="maxDuration is a duration from 1m to 2h, as in 30m",fieldPath=".maxDuration"
type PolicyHold struct {
	// Batches that the rollout waits for.
	// +optional
	// +kubebuilder:default=None
	Until HoldUntil `json:"until,omitempty"`
	// Longest wait for a pod from its creation, 1m to 2h. Then the setting silence
	// decides: the release fails, or the rollout continues. The longest duration
	// of several policies counts.
	// +optional
	// +kubebuilder:default="30m"
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`
}

// Types of checks, as the status of a release and of a batch names them.
const (
	// CheckTypePodHealth reads the state of pods.
	CheckTypePodHealth = "podHealth"
	// CheckTypeCel evaluates expressions.
	CheckTypeCel = "cel"
	// CheckTypeProbe calls pods, or their Service.
	CheckTypeProbe = "probe"
	// CheckTypePrometheus evaluates a query of a Prometheus.
	CheckTypePrometheus = "prometheus"
	// CheckTypeAlerts asks a Prometheus for firing alerts.
	CheckTypeAlerts = "alerts"
	// CheckTypeCompare compares metrics of new pods with those of old ones.
	CheckTypeCompare = "compare"
	// CheckTypeService asks a service for a verdict.
	CheckTypeService = "service"
	// CheckTypeJob runs a Job.
	CheckTypeJob = "job"
)

// PolicyCheck is one check of exactly one type: podHealth, cel, probe,
// prometheus, alerts, compare, service, job or altershield.
//
// +kubebuilder:validation:XValidation:rule="!has(self.compare) || self.stage == 'BatchPost'",message="compare needs the pods of a batch: leave stage out, or set it to BatchPost",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="!has(self.compare) || duration(self.delay) + duration(self.compare.warmUp) + duration(self.compare.maxWindow) + duration(self.compare.slice) + duration('1m') <= duration(self.deadline)",message="deadline must be at least 1m longer than delay, compare.warmUp, compare.maxWindow and compare.slice together",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.altershield) || self.stage == 'BatchPost' && self.mode == 'Enforce' && (!has(self.wait) || self.wait) && duration(self.delay) == duration('0s')",message="a check of type altershield has only name and onError: the server has its own stages, the OpsConfigInfo timeouts sets its time, and the OpsConfigInfo observe turns observe mode on",fieldPath=".altershield",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.podHealth) || self.stage == 'BatchPost'",message="podHealth reads the pods of a batch: leave stage out, or set it to BatchPost",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="!has(self.probe) || self.stage in ['BatchPre', 'BatchPost'] || self.stage == 'ReleasePost' && self.probe.target == 'Service'",message="a probe calls the pods of a batch, or, at ReleasePost too, a Service: set stage to BatchPre or BatchPost, or to ReleasePost with target Service",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="[has(self.podHealth), has(self.cel), has(self.probe), has(self.prometheus), has(self.alerts), has(self.compare), has(self.job), has(self.service), has(self.altershield)].exists_one(t, t)",message="a check has a type, and only one: podHealth, cel, probe, prometheus, alerts, compare, service, job or altershield"
// +kubebuilder:validation:XValidation:rule="!has(self.prometheus) || self.stage != 'Admission'",message="a query is evaluated several times, and the request of a release cannot wait for that: set stage to ReleasePre or later",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="!has(self.alerts) || self.stage in ['BatchPost', 'ReleasePost']",message="alerts are about new pods: leave stage out, or set it to BatchPost or ReleasePost",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="!has(self.service) || self.stage != 'Admission'",message="the request of a release does not wait for a service: set stage to ReleasePre or later",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="!has(self.job) || self.stage != 'Admission'",message="the request of a release does not wait for a Job: set stage to ReleasePre or later",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="!has(self.service) || duration(self.delay) + duration(has(self.timeout) ? self.timeout : '10s') < duration(self.deadline)",message="delay and timeout together must be shorter than deadline, 15m unless given",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Disabled'",message="mode of a check is Enforce or Observe; leave the check out to disable it",fieldPath=".mode"
// +kubebuilder:validation:XValidation:rule="!has(self.podHealth) || duration(self.delay) + duration(self.podHealth.duration) < duration(self.deadline)",message="delay and podHealth.duration together must be shorter than deadline, 15m unless given",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.cel) || !has(self.cel.forEach) || self.stage in ['BatchPre', 'BatchPost']",message="at this stage there are no pods to evaluate the rules for: leave forEach out",fieldPath=".cel.forEach"
// +kubebuilder:validation:XValidation:rule="!has(self.cel) && !has(self.job) || duration(self.delay) < duration(self.deadline)",message="delay must be shorter than deadline, 15m unless given",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.probe) || duration(self.delay).getSeconds() + duration(self.probe.interval).getSeconds() * self.probe.successes + duration(has(self.timeout) ? self.timeout : '10s').getSeconds() < duration(self.deadline).getSeconds()",message="delay, timeout and probe.successes times probe.interval together must be shorter than deadline, 15m unless given",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) >= duration('1s') && duration(self.timeout) <= duration('60s')",message="timeout is a duration from 1s to 60s",fieldPath=".timeout"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || !has(self.timeout) || duration(self.timeout) <= duration('2s')",message="the request of a release waits for a check at the stage Admission: set timeout to 2s or 1s, or leave it out",fieldPath=".timeout"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || !has(self.wait) || self.wait",message="a check at the stage Admission answers the request, and does not continue in the background: leave wait out",fieldPath=".wait"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || duration(self.delay) == duration('0s')",message="a check at the stage Admission answers the request at once: leave delay out",fieldPath=".delay"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || duration(self.deadline) == duration('15m')",message="a check at the stage Admission answers the request at once: leave deadline out, and set timeout",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || !has(self.onError) || self.onError != 'Fail'",message="a check at the stage Admission that cannot be made lets the request pass: leave onError out, or set stage to ReleasePre",fieldPath=".onError"
// +kubebuilder:validation:XValidation:rule="duration(self.delay) >= duration('0s') && duration(self.delay) <= duration('1h')",message="delay is a duration from 0s to 1h",fieldPath=".delay"
// +kubebuilder:validation:XValidation:rule="duration(self.deadline) >= duration('1s') && duration(self.deadline) <= duration('2h')",message="deadline is a duration from 1s to 2h",fieldPath=".deadline"
type PolicyCheck struct {
	// Name of the check in its policy. It is reported as namespace/policy/check.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Stage at which the check begins: any for cel, any but Admission for
	// prometheus, service and job, BatchPost for podHealth and compare, BatchPost or
	// ReleasePost for alerts, BatchPre or BatchPost for probe. A probe with target
	// Service may also begin at ReleasePost.
	// +optional
	// +kubebuilder:default=BatchPost
	Stage PolicyStage `json:"stage,omitempty"`
	// Enforce or Observe. Observe counts also if the policy enforces.
	// +optional
	// +kubebuilder:default=Enforce
	Mode PolicyMode `json:"mode,omitempty"`
	// Time from the start of the stage to the start of the check, 0s to 1h. Not at
	// Admission.
	// +optional
	// +kubebuilder:default="0s"
	Delay *metav1.Duration `json:"delay,omitempty"`
	// Whether the batch or the release waits for the check; if absent, it waits
	// unless the type is alerts. If false, the check runs in the background, and
	// may fail its pods later, also after Success. Not at Admission.
	// +optional
	Wait *bool `json:"wait,omitempty"`
	// Longest duration of the whole check, 1s to 2h. It must exceed delay plus
	// podHealth.duration, or delay plus timeout plus probe.successes times
	// probe.interval, or what a query, a comparison or a service takes. For alerts
	// it is at least 5m longer than delay plus alerts.duration. Not at Admission.
	// +optional
	// +kubebuilder:default="15m"
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// Longest duration of one call, 1s to 60s; 10s if absent. At Admission 1s or
	// 2s; 2s if absent.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Effect if the check could not be measured; if absent, onError of the policy.
	// At Admission the request passes in any case.
	// +optional
	OnError OnSilence `json:"onError,omitempty"`
	// Check of the state of the pods of the batch.
	// +optional
	PodHealth *PodHealthCheck `json:"podHealth,omitempty"`
	// Expressions about the workload, its templates and the pods of the batch,
	// evaluated once.
	// +optional
	Cel *CelCheck `json:"cel,omitempty"`
	// Calls to the pods of the batch, or to a Service.
	// +optional
	Probe *ProbeCheck `json:"probe,omitempty"`
	// Check by AlterShield Server, which is made without it too if a server is
	// configured. Only name and onError may be set. With onError Fail, a missing
	// verdict fails the pods; otherwise the setting silence decides.
	// +optional
	Altershield *AltershieldCheck `json:"altershield,omitempty"`
	// Query of a Prometheus, evaluated several times.
	// +optional
	Prometheus *PrometheusCheck `json:"prometheus,omitempty"`
	// Firing alerts about the workload or its new pods, as a Prometheus has them.
	// +optional
	Alerts *AlertsCheck `json:"alerts,omitempty"`
	// Comparison of metrics of new pods with those of the previous version's.
	// +optional
	Compare *CompareCheck `json:"compare,omitempty"`
	// Job that has to complete. Batches of fewer than ten pods skip it.
	// +optional
	Job *JobCheck `json:"job,omitempty"`
	// Verdict of a service of your own.
	// +optional
	Service *ServiceCheck `json:"service,omitempty"`
}

// PodHealthCheck fails pods that crash, run out of memory or cease to be
// Ready. A pod in CrashLoopBackOff always fails. A pod whose containers failed
// and restarted twice since the check began fails too; after one restart it
// fails if it is not Ready within 30 seconds. Pods that are deleted, evicted
// or lost with their node do not fail.
//
// +kubebuilder:validation:XValidation:rule="duration(self.duration) >= duration('0s') && duration(self.duration) <= duration('1h')",message="duration is a duration from 0s to 1h",fieldPath=".duration"
type PodHealthCheck struct {
	// Time for which the pods are watched, 0s to 1h.
	// +optional
	// +kubebuilder:default="2m"
	Duration *metav1.Duration `json:"duration,omitempty"`
	// Number of restarts of the containers of a pod since the check began that do
	// not fail it. Two restarts always do.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxRestarts *int32 `json:"maxRestarts,omitempty"`
	// Number of times since the check began that a pod may cease to be Ready;
	// unlimited if absent.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxReadinessLosses *int32 `json:"maxReadinessLosses,omitempty"`
	// Whether a pod fails that is not Ready at the end of the duration.
	// +optional
	// +kubebuilder:default=true
	ReadyAtEnd *bool `json:"readyAtEnd,omitempty"`
	// Whether a pod fails if one of its containers was killed for its memory.
	// +optional
	// +kubebuilder:default=true
	FailOnOOM *bool `json:"failOnOOM,omitempty"`
	// Number of pods of the release that may fail, or a percentage, rounded down.
	// They are reported, and do not fail the release.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= 0 && self <= 5000",message="maxFailedPods is a number of pods from 0 to 5000, or a percentage from 0% to 100%"
	// +kubebuilder:validation:Pattern=`^(100|[1-9]?[0-9])%$`
	MaxFailedPods *intstr.IntOrString `json:"maxFailedPods,omitempty"`
	// Whether the check is inconclusive if 10 % or more of the pods of the
	// previous version fail in the same way. Only pods that existed before the
	// check count.
	// +optional
	// +kubebuilder:default=true
	CompareOldPods *bool `json:"compareOldPods,omitempty"`
}

// CelScope is the unit that rules are evaluated for.
// +kubebuilder:validation:Enum=Pod;Batch
type CelScope string

const (
	// CelPerPod means each pod of the batch, as the variable pod. A pod fails if a
	// rule is false for it.
	CelPerPod CelScope = "Pod"
	// CelPerBatch means all pods of the batch together, as the variable pods. All
	// of them fail.
	CelPerBatch CelScope = "Batch"
)

// CelCheck evaluates rules in the Common Expression Language, and passes if
// all are true. Rules know pod or pods, workload, newTemplate, oldTemplate
// (null if there is none), release and the variables. At ReleasePre and
// ReleasePost they are evaluated once, without pods. At Admission they know
// only object, oldObject (null on creation), request, namespaceObject and the
// variables. A deleted pod does not fail.
type CelCheck struct {
	// Unit of evaluation at BatchPre and BatchPost, Pod if absent. Not at other
	// stages.
	// +optional
	ForEach CelScope `json:"forEach,omitempty"`
	// Expressions that are evaluated at their first use, as variables.NAME. Each
	// may use those before it.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	Variables []CelVariable `json:"variables,omitempty"`
	// Rules that must be true.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Rules []CelRule `json:"rules"`
}

// CelVariable is an expression with a name.
type CelVariable struct {
	// Name in other expressions: variables.NAME.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	Name string `json:"name"`
	// Expression of the value.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
}

// CelRule is an expression that must be true.
type CelRule struct {
	// Expression that is true or false.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
	// Text if the rule is false; the expression if absent.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// AltershieldCheck is the check by AlterShield Server. It has no fields.
type AltershieldCheck struct{}

// ProbeTarget is the target of a probe.
// +kubebuilder:validation:Enum=Pods;Service
type ProbeTarget string

const (
	// ProbePods means each pod of the batch, by its IP.
	ProbePods ProbeTarget = "Pods"
	// ProbeService means one Ready pod of a Service for each call, selected at
	// random. If the Service fails, all pods of the batch fail.
	ProbeService ProbeTarget = "Service"
)

// ProbeCheck repeatedly calls each pod of the batch, or a Service, by exactly
// one of http, grpc and tcp. It calls only ports that a container declares,
// and no pod in the network of its node. Pods that are deleted, evicted or
// lost with their node do not fail.
//
// +kubebuilder:validation:XValidation:rule="(has(self.target) && self.target == 'Service') == has(self.service)",message="service names a Service exactly when target is Service: give both, or neither",fieldPath=".service"
// +kubebuilder:validation:XValidation:rule="[has(self.http), has(self.grpc), has(self.tcp)].exists_one(t, t)",message="a probe has exactly one of http, grpc and tcp"
// +kubebuilder:validation:XValidation:rule="duration(self.interval) >= duration('1s') && duration(self.interval) <= duration('5m')",message="interval is a duration from 1s to 5m",fieldPath=".interval"
type ProbeCheck struct {
	// Pods of the batch, or a Service.
	// +optional
	// +kubebuilder:default=Pods
	Target ProbeTarget `json:"target,omitempty"`
	// Service in the namespace of the workload, only with target Service. It needs
	// a selector and a clusterIP; type ExternalName is not called. Calls go to the
	// target port.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Service string `json:"service,omitempty"`
	// GET requests.
	// +optional
	HTTP *HTTPProbe `json:"http,omitempty"`
	// Calls of the gRPC health service, in plain text.
	// +optional
	GRPC *GRPCProbe `json:"grpc,omitempty"`
	// Connections without data.
	// +optional
	TCP *TCPProbe `json:"tcp,omitempty"`
	// Time from one call to the next, 1s to 5m.
	// +optional
	// +kubebuilder:default="10s"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Number of successes in a row that pass.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	Successes int32 `json:"successes,omitempty"`
	// Number of failures in a row that fail.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	Failures int32 `json:"failures,omitempty"`
}

// HTTPProbe makes GET requests. It follows no redirects and verifies no
// certificates, as a kubelet does.
//
// +kubebuilder:validation:XValidation:rule="!self.expect.matches('^[1-5][0-9]{2}-[1-5][0-9]{2}$') || int(self.expect.substring(0, 3)) <= int(self.expect.substring(4))",message="expect is a range from a lower status code to a higher one",fieldPath=".expect"
type HTTPProbe struct {
	// Port that a container or the Service declares.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Path, with a query if needed.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	Path string `json:"path,omitempty"`
	// Protocol of the requests.
	// +optional
	// +kubebuilder:default=HTTP
	// +kubebuilder:validation:Enum=HTTP;HTTPS
	Scheme string `json:"scheme,omitempty"`
	// Expected status code, or a range from a lower to a higher code.
	// +optional
	// +kubebuilder:default="200-399"
	// +kubebuilder:validation:MaxLength=7
	// +kubebuilder:validation:Pattern=`^[1-5][0-9]{2}(-[1-5][0-9]{2})?$`
	Expect string `json:"expect,omitempty"`
}

// GRPCProbe calls the gRPC health service.
type GRPCProbe struct {
	// Port that a container or the Service declares.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Name of the gRPC service; empty asks for the whole server.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	Service string `json:"service,omitempty"`
}

// TCPProbe opens connections.
type TCPProbe struct {
	// Port that a container or the Service declares.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// EmptyResult is the meaning of a result without series.
// +kubebuilder:validation:Enum=NoData;Zero;Pass
type EmptyResult string

const (
	// EmptyNoData means that there is no data: onNoData of the policy decides.
	EmptyNoData EmptyResult = "NoData"
	// EmptyZero means the value 0, as for counters that begin with the first
	// error.
	EmptyZero EmptyResult = "Zero"
	// EmptyPass means that the evaluation passes.
	EmptyPass EmptyResult = "Pass"
)

// PrometheusCheck evaluates a query at planned times, one range of samples and
// then every interval after the check begins. It fails as soon as failWhen was
// true several times in a row, and passes if the last evaluation had data.
// Values that are not finite are no data.
//
// +kubebuilder:validation:XValidation:rule="self.failures <= self.count",message="failures is at most count: no more evaluations are made",fieldPath=".failures"
type PrometheusCheck struct {
	// Endpoint of type Prometheus, in the operator's namespace.
	EndpointRef EndpointReference `json:"endpointRef"`
	// Query in PromQL. Variables: $namespace, $workload, $version, $podLabel and
	// $namespaceLabel of the endpoint, $range (4 times its scrapeInterval, or
	// interval if longer), and $pods of the batch, $newPods of the release,
	// $oldPods of the previous version: patterns with at most 200 pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Query string `json:"query"`
	// Expression in the Common Expression Language that is true for a bad result.
	// It knows value, if the result has one series, values, and samples: value and
	// labels of each series.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	FailWhen string `json:"failWhen"`
	// Time from one evaluation to the next, in seconds or minutes: 5s to 599s, or
	// 1m to 10m.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:Pattern=`^(([5-9]|[1-9][0-9]|[1-5][0-9][0-9])s|[1-9]m([1-5]?[0-9]s)?|10m(0s)?)$`
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Number of evaluations. If the last ones are bad and too few to fail, a few
	// more decide.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	Count int32 `json:"count,omitempty"`
	// Number of bad results in a row that fail.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	Failures int32 `json:"failures,omitempty"`
	// Meaning of a result without series.
	// +optional
	// +kubebuilder:default=NoData
	Empty EmptyResult `json:"empty,omitempty"`
}

// AlertsCheck fails the batch or the release while an alert fires that began
// after the release. An alert with a pod label fails that pod, if it is new;
// other alerts must name the workload. An alert that was pending or firing in
// the hour before the release makes the check inconclusive.
//
// +kubebuilder:validation:XValidation:rule="duration(self.duration) >= duration('1m') && duration(self.duration) <= duration('1h')",message="duration is a duration from 1m to 1h",fieldPath=".duration"
// +kubebuilder:validation:XValidation:rule="duration(self.interval) <= duration(self.duration) && duration(self.interval).getSeconds() * 120 >= duration(self.duration).getSeconds()",message="interval is at most duration, and at least a 120th of it",fieldPath=".interval"
type AlertsCheck struct {
	// Endpoint of type Prometheus, in the operator's namespace. It must have the
	// series ALERTS.
	EndpointRef EndpointReference `json:"endpointRef"`
	// Matchers of labels of the alerts in PromQL, as severity="page". All of them
	// must match; without matchers, all alerts count.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	Matchers []string `json:"matchers,omitempty"`
	// Time from one evaluation to the next, in seconds or minutes: 5s to 599s, or
	// 1m to 10m.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:Pattern=`^(([5-9]|[1-9][0-9]|[1-5][0-9][0-9])s|[1-9]m([1-5]?[0-9]s)?|10m(0s)?)$`
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Time for which alerts are watched, 1m to 1h.
	// +optional
	// +kubebuilder:default="15m"
	Duration *metav1.Duration `json:"duration,omitempty"`
}

// CompareCheck compares metrics of the new pods of a release with those of old
// pods, those of the previous version that exist when the check begins, at the
// same time. It runs after the batches 1, 2, 4, 8 and so on. Hold the rollout,
// so that old pods are left.
//
// +kubebuilder:validation:XValidation:rule="duration(self.window) >= duration('1m') && duration(self.window) <= duration('40m')",message="window is a duration from 1m to 40m",fieldPath=".window"
// +kubebuilder:validation:XValidation:rule="duration(self.slice) >= duration('10s') && duration(self.slice).getSeconds() * 5 <= duration(self.window).getSeconds() && duration(self.slice).getSeconds() * 60 >= duration(self.maxWindow).getSeconds()",message="slice is at least 10s, at most a fifth of window, and at least a 60th of maxWindow",fieldPath=".slice"
// +kubebuilder:validation:XValidation:rule="duration(self.maxWindow).getSeconds() * 2 >= duration(self.window).getSeconds() * 3 && duration(self.maxWindow) <= duration('1h')",message="maxWindow is at least one and a half times window, and at most 1h",fieldPath=".maxWindow"
// +kubebuilder:validation:XValidation:rule="duration(self.warmUp) >= duration('0s') && duration(self.warmUp) <= duration('30m')",message="warmUp is a duration from 0s to 30m",fieldPath=".warmUp"
// +kubebuilder:validation:XValidation:rule="has(self.presets) || has(self.metrics)",message="give presets or metrics",fieldPath=".presets",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="(has(self.metrics) ? self.metrics.size() : 0) + (has(self.presets) ? self.presets.size() + (self.presets.exists(p, p == 'Auto') ? 1 : 0) : 0) <= 12",message="presets and metrics are at most 12 together; Auto counts twice",fieldPath=".presets"
type CompareCheck struct {
	// Endpoint of type Prometheus, in the operator's namespace.
	EndpointRef EndpointReference `json:"endpointRef"`
	// Metrics that the operator knows, compared like those of metrics. Auto compares
	// errors and latency as the first exporter of old pods has them: OpenTelemetry,
	// its gRPC servers, Istio, Linkerd or Spring.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=12
	// +listType=set
	Presets []ComparePreset `json:"presets,omitempty"`
	// Metrics that are compared. With presets, of which Auto counts twice, at most
	// 12.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=12
	// +listType=map
	// +listMapKey=name
	Metrics []CompareMetric `json:"metrics,omitempty"`
	// Time for which pods are compared, after warmUp: 1m to 40m.
	// +optional
	// +kubebuilder:default="5m"
	Window *metav1.Duration `json:"window,omitempty"`
	// Time from one value of a pod to the next, 10s to a fifth of window. The
	// endpoint should be scraped at least twice in it.
	// +optional
	// +kubebuilder:default="1m"
	Slice *metav1.Duration `json:"slice,omitempty"`
	// Time from the start of the check to the start of the window, 0s to 30m: what
	// new pods do in it is not compared.
	// +optional
	// +kubebuilder:default="1m"
	WarmUp *metav1.Duration `json:"warmUp,omitempty"`
	// Longest window if there are too few data, at least one and a half times
	// window, and at most 1h.
	// +optional
	// +kubebuilder:default="10m"
	MaxWindow *metav1.Duration `json:"maxWindow,omitempty"`
	// Number of healthy releases of a thousand that may fail, 1 to 100. All metrics
	// and all batches of a release share it. It holds for old pods at the same time.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FalsePositivesPerMille int32 `json:"falsePositivesPerMille,omitempty"`
	// Whether a change of a query below criticalChangePercent must last for another
	// half of window.
	// +optional
	// +kubebuilder:default=true
	Confirm *bool `json:"confirm,omitempty"`
	// Pods that new pods are compared with; if absent, OldPods. A share is compared
	// with old pods at the same time only, so PreRelease allows none.
	// +optional
	Baseline CompareBaseline `json:"baseline,omitempty"`
}

// CompareBaseline selects the pods that new pods are compared with.
// +kubebuilder:validation:Enum=OldPods;PreRelease;Auto
type CompareBaseline string

const (
	// BaselineOldPods compares with old pods at the same time.
	BaselineOldPods CompareBaseline = "OldPods"
	// BaselinePreRelease compares values with those of old pods before the release.
	BaselinePreRelease CompareBaseline = "PreRelease"
	// BaselineAuto compares as OldPods. If fewer than two old pods have enough data,
	// it compares values as PreRelease.
	BaselineAuto CompareBaseline = "Auto"
)

// ComparePreset is the name of a metric that the operator knows, or Auto.
// +kubebuilder:validation:Enum=Auto;cpu;memory;throttling;istio-errors;istio-latency;istio-p99;spring-errors;spring-latency;otel-errors;otel-latency;otel-rpc-errors;otel-rpc-latency;linkerd-errors;linkerd-latency;jvm-gc
type ComparePreset string

const (
	// PresetAuto finds the errors and the latency of old pods.
	PresetAuto ComparePreset = "Auto"
	// PresetCPU is the CPU that containers use, by cAdvisor.
	PresetCPU ComparePreset = "cpu"
	// PresetMemory is the working set of containers, by cAdvisor.
	PresetMemory ComparePreset = "memory"
	// PresetThrottling is the share of periods in which containers with a CPU limit
	// were throttled, by cAdvisor.
	PresetThrottling ComparePreset = "throttling"
	// PresetIstioErrors is the share of responses with status 5xx, by the sidecars of
	// Istio.
	PresetIstioErrors ComparePreset = "istio-errors"
	// PresetIstioLatency is the average latency, by the sidecars of Istio.
	PresetIstioLatency ComparePreset = "istio-latency"
	// PresetIstioP99 is the 99th percentile of latency, by the sidecars of Istio.
	PresetIstioP99 ComparePreset = "istio-p99"
	// PresetSpringErrors is the share of responses with status 5xx, by Micrometer.
	PresetSpringErrors ComparePreset = "spring-errors"
	// PresetSpringLatency is the average latency, by Micrometer.
	PresetSpringLatency ComparePreset = "spring-latency"
	// PresetOTelErrors is the share of responses of HTTP servers with status 5xx, by
	// OpenTelemetry.
	PresetOTelErrors ComparePreset = "otel-errors"
	// PresetOTelLatency is the average latency of HTTP servers, by OpenTelemetry.
	PresetOTelLatency ComparePreset = "otel-latency"
	// PresetOTelRPCErrors is the share of calls of gRPC servers that fail by their
	// fault, by OpenTelemetry.
	PresetOTelRPCErrors ComparePreset = "otel-rpc-errors"
	// PresetOTelRPCLatency is the average latency of gRPC servers, by OpenTelemetry.
	PresetOTelRPCLatency ComparePreset = "otel-rpc-latency"
	// PresetLinkerdErrors is the share of failed responses, by the proxies of
	// Linkerd.
	PresetLinkerdErrors ComparePreset = "linkerd-errors"
	// PresetLinkerdLatency is the average latency, by the proxies of Linkerd.
	PresetLinkerdLatency ComparePreset = "linkerd-latency"
	// PresetJVMGC is the share of time that a JVM pauses for garbage collection, by
	// Micrometer.
	PresetJVMGC ComparePreset = "jvm-gc"
)

// CompareDirection is the change that is worse.
// +kubebuilder:validation:Enum=Increase;Decrease;Either
type CompareDirection string

const (
	// CompareIncrease means that higher is worse.
	CompareIncrease CompareDirection = "Increase"
	// CompareDecrease means that lower is worse.
	CompareDecrease CompareDirection = "Decrease"
	// CompareEither means that any change is worse.
	CompareEither CompareDirection = "Either"
)

// CompareMetric is a value of each pod, or a share of its requests, as of
// errors.
//
// +kubebuilder:validation:XValidation:rule="has(self.query) != has(self.numerator) && has(self.numerator) == has(self.denominator)",message="a metric has either query, or numerator and denominator"
// +kubebuilder:validation:XValidation:rule="!has(self.query) || has(self.minChange)",message="give the least change that matters, in the unit of the query",fieldPath=".minChange",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="!has(self.numerator) || self.direction == 'Increase'",message="of a share only an increase is worse: leave direction out",fieldPath=".direction"
type CompareMetric struct {
	// Name in messages.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Query in PromQL with one value for each pod, as of latency. It has the
	// variables of a check of type prometheus; $pods are new and old pods, and
	// $range is slice, or 4 times the scrapeInterval of the endpoint if longer.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Query string `json:"query,omitempty"`
	// Query with one counter for each pod, as of its failed requests. A pod without
	// a series counts as 0.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Numerator string `json:"numerator,omitempty"`
	// Query with one counter for each pod, as of all its requests.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Denominator string `json:"denominator,omitempty"`
	// Change that is worse. Of a share it is an increase.
	// +optional
	// +kubebuilder:default=Increase
	Direction CompareDirection `json:"direction,omitempty"`
	// Least change that fails, in percent of the old value; if absent, 30 for a
	// query and 100 for a share.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MinChangePercent *int32 `json:"minChangePercent,omitempty"`
	// Least change that fails, in the unit of the query, greater than 0; for a share
	// of requests 0.002 if absent.
	// +optional
	MinChange *resource.Quantity `json:"minChange,omitempty"`
	// Change that fails without confirmation, in percent of the old value; only for
	// a query.
	// +optional
	// +kubebuilder:default=200
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	CriticalChangePercent int32 `json:"criticalChangePercent,omitempty"`
}

// ServiceProtocol is the form of requests to a service, and of its answers.
// +kubebuilder:validation:Enum=AlterShield;JSON
type ServiceProtocol string

const (
	// ServiceAlterShield means that the service gets a CheckReview, and answers
	// with a verdict.
	ServiceAlterShield ServiceProtocol = "AlterShield"
	// ServiceJSON means that the service gets the parameters, and that failWhen
	// reads its answer.
	ServiceJSON ServiceProtocol = "JSON"
)

// ServiceInvoke is the way to the result of a service.
// +kubebuilder:validation:Enum=Sync;Polling
type ServiceInvoke string

const (
	// ServiceSync means that the answer of the service is its result.
	ServiceSync ServiceInvoke = "Sync"
	// ServicePolling means that the service may answer that it is not finished. The
	// request is then repeated.
	ServicePolling ServiceInvoke = "Polling"
)

// ParameterValue is the value of a parameter of a service.
// +kubebuilder:validation:MaxLength=1024
type ParameterValue string

// ServiceCheck asks a service by POST until it has a result. Redirects are not
// followed. A call that fails is repeated until the deadline.
//
// +kubebuilder:validation:XValidation:rule="(self.protocol == 'JSON') == has(self.failWhen)",message="protocol JSON needs failWhen, and protocol AlterShield has verdicts instead: set failWhen exactly for protocol JSON",fieldPath=".failWhen"
type ServiceCheck struct {
	// Endpoint of type HTTP, in the operator's namespace.
	EndpointRef EndpointReference `json:"endpointRef"`
	// AlterShield sends a CheckReview, JSON only the parameters.
	// +optional
	// +kubebuilder:default=AlterShield
	Protocol ServiceProtocol `json:"protocol,omitempty"`
	// Sync, or Polling if the service may need longer than timeout: it answers
	// running, or with the status 202, and gets the same request again.
	// +optional
	// +kubebuilder:default=Sync
	Invoke ServiceInvoke `json:"invoke,omitempty"`
	// Parameters for the service. A name has at most 63 characters.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(name, name.size() <= 63)",message="the name of a parameter has at most 63 characters"
	Parameters map[string]ParameterValue `json:"parameters,omitempty"`
	// Expression in the Common Expression Language that is true for a bad answer,
	// only with protocol JSON. It knows body, the JSON of the answer, and status,
	// 200 to 299.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	FailWhen string `json:"failWhen,omitempty"`
}

// JobCheck runs a Job once, as the job template of a suspended CronJob has it.
// The check passes if the Job completes, and fails if it fails.
type JobCheck struct {
	// Name of the CronJob, in the namespace of the workload. Its spec.suspend must
	// be true, and its label altershield.defense.antgroup.com/check-template
	// "true".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	CronJob string `json:"cronJob"`
}

// EndpointReference names a DefenseEndpoint in the operator's namespace.
type EndpointReference struct {
	// Name of the DefenseEndpoint.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// NotifyReason is an event of a release that alerts report.
// +kubebuilder:validation:Enum=Failed;WouldFail;RolledBack;Blocked;FreezeBroken
type NotifyReason string

const (
	// NotifyFailed means that the current release of the workload is failed.
	NotifyFailed NotifyReason = "Failed"
	// NotifyWouldFail means that a release failed, or would have been rolled back,
	// but only a check, a workload or a namespace in observe mode found it.
	NotifyWouldFail NotifyReason = "WouldFail"
	// NotifyRolledBack means that a release was rolled back, or undone by a user.
	NotifyRolledBack NotifyReason = "RolledBack"
	// NotifyBlocked means that releases of the workload are blocked.
	NotifyBlocked NotifyReason = "Blocked"
	// NotifyFreezeBroken means that a release passed a freeze, with a reason, as a
	// version that succeeded before, or because it bypassed admission.
	NotifyFreezeBroken NotifyReason = "FreezeBroken"
)

// PolicyNotify sends alerts to one Alertmanager. Failed and Blocked fire until
// they end. The others fire for 15 minutes.
type PolicyNotify struct {
	// Endpoint of type Alertmanager, in the operator's namespace.
	EndpointRef EndpointReference `json:"endpointRef"`
	// Events that are reported, each as an alert of this name with the prefix
	// AlterShield.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +listType=set
	Events []NotifyReason `json:"events"`
}

// DefensePolicyStatus reports whether the policy is in force.
type DefensePolicyStatus struct {
	// Last accepted spec. It is in force while the present spec is not accepted.
	// +optional
	InForce *DefensePolicySpec `json:"inForce,omitempty"`
	// metadata.generation of the spec in force.
	// +optional
	InForceGeneration int64 `json:"inForceGeneration,omitempty"`
	// Number of checks in spec.
	// +optional
	CheckCount int32 `json:"checkCount,omitempty"`
	// Current and next windows of the freezes in force, two for each action.
	// Windows of freezes that touch are one.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	FreezeWindows []FreezeWindow `json:"freezeWindows,omitempty"`
	// metadata.generation that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Accepted reports whether the policy is in force, else why not and where.
	// SetAside reports rules that do not end, QueriesWork whether queries found
	// series when they were tried once, Notifies whether alerts can be sent.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DefensePolicy is a set of checks of releases that need no server. All
// policies of a workload's namespace and of the operator's namespace that
// select the workload count together. The name has at most 63 characters.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=defensepolicies,singular=defensepolicy,scope=Namespaced,shortName=dpol,categories=altershield
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name of a policy has at most 63 characters"
// +kubebuilder:printcolumn:name="MODE",type=string,JSONPath=`.spec.mode`,description="Enforce, Observe or Disabled"
// +kubebuilder:printcolumn:name="CHECKS",type=integer,JSONPath=`.status.checkCount`,description="Number of checks"
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether spec is in force"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="REASON",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`,description="Reason of ACCEPTED"
// +kubebuilder:printcolumn:name="HOLD",type=string,priority=1,JSONPath=`.spec.hold.until`,description="Batches that rollouts wait for"
// +kubebuilder:printcolumn:name="FREEZE",type=string,priority=1,JSONPath=`.status.freezeWindows[0].start`,description="Start of the current or next freeze"
type DefensePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Checks and hold.
	Spec DefensePolicySpec `json:"spec"`
	// Whether the policy is in force.
	Status DefensePolicyStatus `json:"status,omitempty"`
}

// DefensePolicyList is a list of DefensePolicies.
//
// +kubebuilder:object:root=true
type DefensePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DefensePolicy `json:"items"`
}
