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

// The kind DefensePolicy with all its parts, in one file as each kind is: more than 500 lines, of which most are comments of fields.

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PolicyMode is how much a policy, or one check of it, may do.
// +kubebuilder:validation:Enum=Enforce;Observe;Disabled
type PolicyMode string

const (
	// ModeEnforce means that what fails is failed.
	ModeEnforce PolicyMode = "Enforce"
	// ModeObserve means that it is only told: events and metrics.
	ModeObserve PolicyMode = "Observe"
	// ModeDisabled means that nothing is checked.
	ModeDisabled PolicyMode = "Disabled"
)

// PolicyStage is a point of a release at which it is checked.
// +kubebuilder:validation:Enum=Admission;ReleasePre;BatchPre;BatchPost;ReleasePost
type PolicyStage string

const (
	// StageAdmission is when somebody asks the API server to release: what fails is
	// refused.
	StageAdmission PolicyStage = "Admission"
	// StageReleasePre is when the release begins: batches wait for it.
	StageReleasePre PolicyStage = "ReleasePre"
	// StageBatchPre is when the pods of a batch have finished: the checks at BatchPost
	// wait for it.
	StageBatchPre PolicyStage = "BatchPre"
	// StageBatchPost is after the pods of a batch have finished.
	StageBatchPost PolicyStage = "BatchPost"
	// StageReleasePost is when all pods have passed: success waits for it.
	StageReleasePost PolicyStage = "ReleasePost"
)

// OnSilence is what a check without a verdict means.
// +kubebuilder:validation:Enum=Pass;Fail;Default
type OnSilence string

const (
	// SilencePasses means that it does not fail the pods.
	SilencePasses OnSilence = "Pass"
	// SilenceFails means that it fails them.
	SilenceFails OnSilence = "Fail"
	// SilenceDefault means what the setting silence says.
	SilenceDefault OnSilence = "Default"
)

// HoldUntil says which batches of a release its rollout waits for.
// +kubebuilder:validation:Enum=None;FirstBatch;EveryBatch
type HoldUntil string

const (
	// HoldNone means none: pods are replaced at the pace of the workload.
	HoldNone HoldUntil = "None"
	// HoldFirstBatch means the first: when its pods have passed, the others are
	// replaced at the pace of the workload.
	HoldFirstBatch HoldUntil = "FirstBatch"
	// HoldEveryBatch means every one: more pods are replaced when those that were
	// replaced so far have passed.
	HoldEveryBatch HoldUntil = "EveryBatch"
)

// Holds says that a rollout waits at all.
func (h HoldUntil) Holds() bool { return h == HoldFirstBatch || h == HoldEveryBatch }

// Reserved has its place in the API, and its meaning in a later release of the
// operator. Until then the API server refuses it.
// +kubebuilder:validation:Type=object
// +kubebuilder:pruning:PreserveUnknownFields
type Reserved struct{}

// DefensePolicySpec says what is checked of releases.
//
// +kubebuilder:validation:XValidation:rule="has(self.checks) && self.checks.size() > 0 || has(self.hold) && self.hold.until != 'None'",message="a policy has checks, or a hold: give at least one check, or set hold.until to FirstBatch or EveryBatch",fieldPath=".checks"
// +kubebuilder:validation:XValidation:rule="!has(self.freezes)",message="freezes belong to a later release of the operator",fieldPath=".freezes",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.notify)",message="notify belongs to a later release of the operator",fieldPath=".notify",reason=FieldValueForbidden
type DefensePolicySpec struct {
	// Mode of all checks. Enforce: what fails is failed. Observe: it is told by
	// events and metrics, and changes nothing. Disabled: nothing is checked.
	// +optional
	// +kubebuilder:default=Enforce
	Mode PolicyMode `json:"mode,omitempty"`
	// WorkloadSelector selects the workloads by their labels; all when empty.
	// +optional
	WorkloadSelector *metav1.LabelSelector `json:"workloadSelector,omitempty"`
	// NamespaceSelector selects the namespaces by their labels; all
	// enrolled ones when empty. Only in the operator's namespace: a policy of
	// another one is of that namespace.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Suggestion is appended to the message of a failure, for the engineer who
	// reads it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Suggestion string `json:"suggestion,omitempty"`
	// OnNoData is what a check that is inconclusive, or that found no data, means
	// for its pods. Default: what the setting silence says.
	// +optional
	// +kubebuilder:default=Default
	OnNoData OnSilence `json:"onNoData,omitempty"`
	// OnError is what a check that could not be measured until its deadline means
	// for its pods. Default: what the setting silence says.
	// +optional
	// +kubebuilder:default=Default
	OnError OnSilence `json:"onError,omitempty"`
	// Hold says whether the rollout of a release waits for its verdicts. Of all
	// policies in mode Enforce, and of the setting holding, the strictest counts.
	// +optional
	Hold *PolicyHold `json:"hold,omitempty"`
	// Freezes are reserved.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Freezes []Reserved `json:"freezes,omitempty"`
	// Notify is reserved.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	Notify []Reserved `json:"notify,omitempty"`
	// Checks are made of every release that the policy selects, each by itself.
	// There may be none where the policy holds.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="self.filter(c, has(c.altershield)).size() <= 1",message="a policy has at most one check of type altershield"
	Checks []PolicyCheck `json:"checks,omitempty"`
}

// PolicyHold has the rollout of a release wait until pods that it has made were
// verified, by whatever checks apply to them, before it replaces more.
//
// +kubebuilder:validation:XValidation:rule="duration(self.maxDuration) >= duration('1m') && duration(self.maxDuration) <= duration('2h')",message="maxDuration is a duration from 1m to 2h, as in 30m",fieldPath=".maxDuration"
type PolicyHold struct {
	// Until which batches have passed. None: the policy does not hold. FirstBatch:
	// once the first pods have passed, the rollout goes on as it would without the
	// policy. EveryBatch: it waits each time that it has made as many pods as its
	// strategy lets it.
	// +optional
	// +kubebuilder:default=None
	Until HoldUntil `json:"until,omitempty"`
	// MaxDuration is the longest time that pods are waited for, from when they were
	// made, 1m to 2h. Then it counts what silence means: the release fails, or the
	// rollout goes on. Of several policies the longest counts.
	// +optional
	// +kubebuilder:default="30m"
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`
}

// Types of checks, as the status of a release and of a batch names them.
const (
	// CheckTypePodHealth is decided from what is written down of pods.
	CheckTypePodHealth = "podHealth"
	// CheckTypeCel evaluates expressions.
	CheckTypeCel = "cel"
	// CheckTypeProbe calls the pods, or their Service.
	CheckTypeProbe = "probe"
)

// PolicyCheck is one check: exactly one of the types.
//
// +kubebuilder:validation:XValidation:rule="!has(self.prometheus)",message="the check type prometheus belongs to a later release of the operator",fieldPath=".prometheus",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.compare)",message="the check type compare belongs to a later release of the operator",fieldPath=".compare",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.job)",message="the check type job belongs to a later release of the operator",fieldPath=".job",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.service)",message="the check type service belongs to a later release of the operator",fieldPath=".service",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.altershield) || self.stage == 'BatchPost' && self.mode == 'Enforce' && self.wait && duration(self.delay) == duration('0s')",message="of a check of type altershield only name and onError are given: the server has stages of its own, its time is in the OpsConfigInfo timeouts, and observe mode is in the OpsConfigInfo observe",fieldPath=".altershield",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.podHealth) || self.stage == 'BatchPost'",message="podHealth looks at the pods of a batch: leave stage out, or set it to BatchPost",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="!has(self.probe) || self.stage in ['BatchPre', 'BatchPost'] || self.stage == 'ReleasePost' && self.probe.target == 'Service'",message="a probe calls the pods of a batch, or, at ReleasePost too, a Service: set stage to BatchPre or BatchPost, or to ReleasePost with target Service",fieldPath=".stage"
// +kubebuilder:validation:XValidation:rule="[has(self.podHealth), has(self.cel), has(self.probe), has(self.prometheus), has(self.compare), has(self.job), has(self.service), has(self.altershield)].exists_one(t, t)",message="a check has a type, and only one: podHealth, cel, probe or altershield"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Disabled'",message="mode of a check is Enforce or Observe; leave the check out to disable it",fieldPath=".mode"
// +kubebuilder:validation:XValidation:rule="!has(self.podHealth) || duration(self.delay) + duration(self.podHealth.duration) < duration(self.deadline)",message="delay and podHealth.duration together must be shorter than deadline, 15m unless given",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.cel) || !has(self.cel.forEach) || self.stage in ['BatchPre', 'BatchPost']",message="at this stage there are no pods to evaluate the rules for: leave forEach out",fieldPath=".cel.forEach"
// +kubebuilder:validation:XValidation:rule="!has(self.cel) || duration(self.delay) < duration(self.deadline)",message="delay must be shorter than deadline, 15m unless given",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.probe) || duration(self.delay).getSeconds() + duration(self.probe.interval).getSeconds() * self.probe.successes + duration(has(self.timeout) ? self.timeout : '10s').getSeconds() < duration(self.deadline).getSeconds()",message="delay, timeout and probe.successes times probe.interval together must be shorter than deadline, 15m unless given",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) >= duration('1s') && duration(self.timeout) <= duration('60s')",message="timeout is a duration from 1s to 60s",fieldPath=".timeout"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || !has(self.timeout) || duration(self.timeout) <= duration('2s')",message="whoever releases waits for a check at the stage Admission: set timeout to 2s or 1s, or leave it out",fieldPath=".timeout"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || self.wait",message="a check at the stage Admission answers the request, and does not go on in the background: leave wait out",fieldPath=".wait"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || duration(self.delay) == duration('0s')",message="a check at the stage Admission answers the request at once: leave delay out",fieldPath=".delay"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || duration(self.deadline) == duration('15m')",message="a check at the stage Admission answers the request at once: leave deadline out, and set timeout",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="self.stage != 'Admission' || !has(self.onError) || self.onError != 'Fail'",message="a check at the stage Admission that cannot be made lets pass: leave onError out, or have the check at the stage ReleasePre",fieldPath=".onError"
// +kubebuilder:validation:XValidation:rule="duration(self.delay) >= duration('0s') && duration(self.delay) <= duration('1h')",message="delay is a duration from 0s to 1h",fieldPath=".delay"
// +kubebuilder:validation:XValidation:rule="duration(self.deadline) >= duration('1s') && duration(self.deadline) <= duration('2h')",message="deadline is a duration from 1s to 2h",fieldPath=".deadline"
type PolicyCheck struct {
	// Name of the check, in its policy. It is reported as
	// namespace/policy/check.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Stage of the release at which it begins. Admission: when somebody asks the
	// API server to release; only checks of type cel, and what fails is refused.
	// ReleasePre: when the release begins; its batches wait for the check. BatchPre:
	// when the pods of a batch have finished. BatchPost: then, too, but after the
	// checks at BatchPre. ReleasePost: when all pods have passed; the success of the
	// release waits for the check.
	// +optional
	// +kubebuilder:default=BatchPost
	Stage PolicyStage `json:"stage,omitempty"`
	// Mode of this check: Observe only tells, also where the policy enforces.
	// +optional
	// +kubebuilder:default=Enforce
	Mode PolicyMode `json:"mode,omitempty"`
	// Delay after the stage began, before the check does, 0s to 1h.
	// +optional
	// +kubebuilder:default="0s"
	Delay *metav1.Duration `json:"delay,omitempty"`
	// Wait: the batch, and so the release, waits for the check. false: the check
	// goes on in the background, and fails its pods later if it must, also after
	// the release succeeded; that the check passed is not written.
	// +optional
	// +kubebuilder:default=true
	Wait *bool `json:"wait,omitempty"`
	// Deadline of the whole check, 1s to 2h.
	// +optional
	// +kubebuilder:default="15m"
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// Timeout of one call of the check, 1s to 60s; 10s when absent. At the stage
	// Admission 1s to 2s, and 2s when absent.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// OnError is what it means that this check could not be measured; what the
	// policy says when empty. At the stage Admission it lets pass, whatever the
	// policy says.
	// +optional
	OnError OnSilence `json:"onError,omitempty"`
	// PodHealth looks at how the pods of the batch are.
	// +optional
	PodHealth *PodHealthCheck `json:"podHealth,omitempty"`
	// Cel looks once at the workload, its templates and the pods of the batch, by
	// expressions.
	// +optional
	Cel *CelCheck `json:"cel,omitempty"`
	// Probe calls the pods of the batch, or a Service.
	// +optional
	Probe *ProbeCheck `json:"probe,omitempty"`
	// Altershield is the check by AlterShield Server. Where the operator has a server
	// it is made anyway; naming it says with onError what it means that the server
	// gives no verdict in time: Fail, as the setting silence would. That setting
	// counts otherwise.
	// +optional
	Altershield *AltershieldCheck `json:"altershield,omitempty"`
	// Prometheus is reserved.
	// +optional
	Prometheus *Reserved `json:"prometheus,omitempty"`
	// Compare is reserved.
	// +optional
	Compare *Reserved `json:"compare,omitempty"`
	// Job is reserved.
	// +optional
	Job *Reserved `json:"job,omitempty"`
	// Service is reserved.
	// +optional
	Service *Reserved `json:"service,omitempty"`
}

// PodHealthCheck fails pods of the batch that crash, run out of memory or cease to
// be Ready. A pod that is in CrashLoopBackOff fails always, and so does one whose
// containers failed and were restarted twice since the check began, or once if it is
// not Ready 30 seconds later. Pods that are deleted,
// evicted, or lost with their node are nobody's failure.
//
// +kubebuilder:validation:XValidation:rule="duration(self.duration) >= duration('0s') && duration(self.duration) <= duration('1h')",message="duration is a duration from 0s to 1h",fieldPath=".duration"
type PodHealthCheck struct {
	// Duration for which the pods are looked at, from when the check begins, 0s
	// to 1h.
	// +optional
	// +kubebuilder:default="2m"
	Duration *metav1.Duration `json:"duration,omitempty"`
	// MaxRestarts of the containers of a pod since the check began; more fail it.
	// Two restarts always do.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxRestarts *int32 `json:"maxRestarts,omitempty"`
	// MaxReadinessLosses is how often a pod may cease to be Ready since the check
	// began; more fail it. Without it flaps alone are not judged.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxReadinessLosses *int32 `json:"maxReadinessLosses,omitempty"`
	// ReadyAtEnd fails a pod that is not Ready when the duration is over.
	// +optional
	// +kubebuilder:default=true
	ReadyAtEnd *bool `json:"readyAtEnd,omitempty"`
	// FailOnOOM fails a pod one of whose containers was killed for its memory.
	// +optional
	// +kubebuilder:default=true
	FailOnOOM *bool `json:"failOnOOM,omitempty"`
	// MaxFailedPods is how many pods of the release so far may fail: a number, or
	// a percentage, rounded down. Up to so many are told, and not failed.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 5000 : self.matches('^(100|[1-9]?[0-9])%$')",message="maxFailedPods is a number of pods, or a percentage from 0% to 100%"
	MaxFailedPods *intstr.IntOrString `json:"maxFailedPods,omitempty"`
	// CompareOldPods: where 10 % or more of the pods of the version before do the
	// same, it is not this release that is bad: the check is inconclusive. Only pods
	// that were made before the check began count.
	// +optional
	// +kubebuilder:default=true
	CompareOldPods *bool `json:"compareOldPods,omitempty"`
}

// CelScope is what the expressions of a check are evaluated for.
// +kubebuilder:validation:Enum=Pod;Batch
type CelScope string

const (
	// CelPerPod means for each pod of the batch, which is pod. A pod for which a
	// rule is false fails.
	CelPerPod CelScope = "Pod"
	// CelPerBatch means for all of them together, which are pods. All of them fail.
	CelPerBatch CelScope = "Batch"
)

// CelCheck evaluates expressions of the Common Expression Language. The check passes
// when all rules are true. Beside pod or pods they know workload, newTemplate and
// oldTemplate (null when there is none), release, and the variables. A pod that is
// gone is nobody's failure. At the stages ReleasePre and ReleasePost the rules are
// evaluated once, and know neither pod nor pods. At the stage Admission they know,
// as in a ValidatingAdmissionPolicy, object, oldObject (null when it is being
// created), request and namespaceObject, and nothing else.
type CelCheck struct {
	// ForEach says what the rules are evaluated for at the stage BatchPost; Pod when
	// absent. It is not given at other stages.
	// +optional
	ForEach CelScope `json:"forEach,omitempty"`
	// Variables are evaluated when they are first used, as variables.<name>. Each
	// may use those before it.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	Variables []CelVariable `json:"variables,omitempty"`
	// Rules that have to be true.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Rules []CelRule `json:"rules"`
}

// CelVariable is an expression with a name.
type CelVariable struct {
	// Name by which other expressions use it: variables.<name>.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	Name string `json:"name"`
	// Expression whose value it has.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
}

// CelRule is an expression that has to be true.
type CelRule struct {
	// Expression that is true or false.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
	// Message is told when it is false; the expression when it is left out.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// AltershieldCheck is the check by AlterShield Server.
type AltershieldCheck struct{}

// ProbeTarget is what a probe calls.
// +kubebuilder:validation:Enum=Pods;Service
type ProbeTarget string

const (
	// ProbePods means each pod of the batch, by its IP.
	ProbePods ProbeTarget = "Pods"
	// ProbeService means the Ready pods that a Service selects, one by chance each time.
	ProbeService ProbeTarget = "Service"
)

// ProbeCheck calls each pod of the batch, or a Service, again and again: exactly one
// of http, grpc and tcp. Only ports that a container of the pod declares are called,
// and none of a pod in the network of its node. Pods that are deleted, evicted, or
// lost with their node are nobody's failure.
//
// +kubebuilder:validation:XValidation:rule="(has(self.target) && self.target == 'Service') == has(self.service)",message="service names a Service exactly when target is Service: give both, or neither",fieldPath=".service"
// +kubebuilder:validation:XValidation:rule="[has(self.http), has(self.grpc), has(self.tcp)].exists_one(t, t)",message="a probe has exactly one of http, grpc and tcp"
// +kubebuilder:validation:XValidation:rule="duration(self.interval) >= duration('1s') && duration(self.interval) <= duration('5m')",message="interval is a duration from 1s to 5m",fieldPath=".interval"
type ProbeCheck struct {
	// Target is what is called. Pods: each pod of the batch. Service: a Service, for
	// the batch as a whole; all pods of the batch fail with it.
	// +optional
	// +kubebuilder:default=Pods
	Target ProbeTarget `json:"target,omitempty"`
	// Service in the namespace of the workload that is called, with target Service.
	// It has a selector and a clusterIP: none of type ExternalName, and no headless
	// one, is called. Each call goes to one of its Ready pods, at the target port; pods in
	// the network of their node are not called.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Service string `json:"service,omitempty"`
	// HTTP makes GET requests.
	// +optional
	HTTP *HTTPProbe `json:"http,omitempty"`
	// GRPC asks the gRPC health service, in plain text.
	// +optional
	GRPC *GRPCProbe `json:"grpc,omitempty"`
	// TCP connects, and sends nothing.
	// +optional
	TCP *TCPProbe `json:"tcp,omitempty"`
	// Interval from one call to the next, 1s to 5m.
	// +optional
	// +kubebuilder:default="10s"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Successes in a row with which a pod, or the Service, passes.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	Successes int32 `json:"successes,omitempty"`
	// Failures in a row with which it fails.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	Failures int32 `json:"failures,omitempty"`
}

// HTTPProbe makes GET requests. Redirects are not followed, and certificates are not
// verified, as with the probes of a kubelet.
//
// +kubebuilder:validation:XValidation:rule="!self.expect.matches('^[1-5][0-9]{2}-[1-5][0-9]{2}$') || int(self.expect.substring(0, 3)) <= int(self.expect.substring(4))",message="expect is a range from a lower status code to a higher one",fieldPath=".expect"
type HTTPProbe struct {
	// Port that a container declares, or the Service.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Path, with a query if need be.
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	Path string `json:"path,omitempty"`
	// Scheme is HTTP or HTTPS.
	// +optional
	// +kubebuilder:default=HTTP
	// +kubebuilder:validation:Enum=HTTP;HTTPS
	Scheme string `json:"scheme,omitempty"`
	// Expect is the status code that is good, or a range of them.
	// +optional
	// +kubebuilder:default="200-399"
	// +kubebuilder:validation:MaxLength=7
	// +kubebuilder:validation:Pattern=`^[1-5][0-9]{2}(-[1-5][0-9]{2})?$`
	Expect string `json:"expect,omitempty"`
}

// GRPCProbe asks the gRPC health service.
type GRPCProbe struct {
	// Port that a container declares, or the Service.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Service that is asked about; the whole server when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	Service string `json:"service,omitempty"`
}

// TCPProbe connects.
type TCPProbe struct {
	// Port that a container declares, or the Service.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// DefensePolicyStatus says whether the policy is in force.
type DefensePolicyStatus struct {
	// InForce is the last spec that was accepted. It is in force while the
	// present one is not accepted.
	// +optional
	InForce *DefensePolicySpec `json:"inForce,omitempty"`
	// InForceGeneration is the metadata.generation it is of.
	// +optional
	InForceGeneration int64 `json:"inForceGeneration,omitempty"`
	// CheckCount is the number of checks in spec. Absent in objects of earlier builds.
	// +optional
	CheckCount int32 `json:"checkCount,omitempty"`
	// ObservedGeneration is the metadata.generation this status was computed
	// from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Accepted says whether the policy is in force and, if not, why
	// and where.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DefensePolicy says what is checked of releases, without any server. All
// policies of a workload's namespace, and of the operator's, that select it count
// together: none takes away from another.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=defensepolicies,singular=defensepolicy,scope=Namespaced,shortName=dpol,categories=altershield
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name of a policy has at most 63 characters"
// +kubebuilder:printcolumn:name="MODE",type=string,JSONPath=`.spec.mode`,description="Enforce, Observe or Disabled"
// +kubebuilder:printcolumn:name="CHECKS",type=integer,JSONPath=`.status.checkCount`,description="Number of its checks"
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether the policy is in force as it is"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="REASON",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`,description="Why it is, or is not"
// +kubebuilder:printcolumn:name="HOLD",type=string,priority=1,JSONPath=`.spec.hold.until`,description="Which batches rollouts wait for"
type DefensePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what is checked.
	Spec DefensePolicySpec `json:"spec"`
	// Status says whether the policy is in force.
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
