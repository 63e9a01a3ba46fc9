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

// Package metrics has the operator's own metrics. Their labels are bounded: none
// of them names a workload or a pod. The label with the namespace may be turned off.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

var (
	serverRequests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_server_requests_total",
		Help: "Calls to AlterShield Server, by action and class: ok, Retry, Human or GiveUp.",
	}, []string{"action", "class"})
	serverSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "altershield_server_request_seconds",
		Help:    "Duration of the calls that were sent to AlterShield Server, by action.",
		Buckets: []float64{.005, .025, .1, .5, 1, 2.5, 5, 10},
	}, []string{"action"})
	callbacks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_callbacks_total",
		Help: "Requests to the callback address, by outcome.",
	}, []string{"outcome"})
	batches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_batches_total",
		Help: "Batches that are done, by result: PostFinish, Skipped, PreFailed, PreTimeout, PostFailed or PostTimeout.",
	}, []string{"result"})
	checks   = newPolicyChecks()
	releases = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_releases_total",
		Help: "Releases that entered a state, by the kind of the workload and the state: " +
			"Running, TimeOutPreThreshold, Success, Suspend, Failed, Rollback or Canceled.",
	}, []string{"kind", "state"})
	verdicts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_verdicts_total",
		Help: "Verdicts that were delivered and stored, by stage (PRE or POST) and outcome (pass or fail).",
	}, []string{"stage", "outcome"})
	verdictSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "altershield_verdict_seconds",
		Help:    "Time from the submission of a batch's check until its verdict was stored, in whole seconds, by stage.",
		Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600},
	}, []string{"stage"})
	notifications = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_notifications_total",
		Help: "Alerts of policies for Alertmanager, by outcome: sent, failed, or dropped if too many fire. A firing alert is sent each minute.",
	}, []string{"outcome"})
	overrides = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_overrides_total",
		Help: "Releases that passed a block by the label ignored-suspend, by the kind of the workload.",
	}, []string{"kind"})
	leftWhileBlocked = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_left_while_blocked_total",
		Help: "Workloads that left the defense while blocked or with quarantined versions, by kind and how: opted-out or deleted.",
	}, []string{"kind", "how"})
	verdictsCorrected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_verdicts_corrected_total",
		Help: "Times the failing verdicts of a release were corrected, by the kind of the workload.",
	}, []string{"kind"})
	rollbacks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_rollbacks_total",
		Help: "Releases that the operator rolled back, without the undos of users, by the kind of the workload and the reason: " +
			"NeverStarted, VerificationFailed or Requested.",
	}, []string{"kind", "reason"})
	evictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_evictions_total",
		Help: "Evictions of pods that were stuck after a rollback, by kind of the workload and outcome: " +
			"evicted, blocked (by a PodDisruptionBudget), denied (by a policy or a missing right) or outdated (the pod had changed).",
	}, []string{"kind", "outcome"})
	undos = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_undos_total",
		Help: "Failed releases that a user replaced by a good version, past the block, by the kind of the workload.",
	}, []string{"kind"})
	rollbacksLimited = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_rollbacks_limited_total",
		Help: "Releases whose rollback waits for the rollback limit (setting limit), by the kind of the workload.",
	}, []string{"kind"})
	defenseLowered = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_defense_lowered_total",
		Help: "Times a setting lowered the defense: blocking or quarantine turned off below the operator, observe turned on, " +
			"by setting and level (operator, namespace or workload; of a workload once for each release).",
	}, []string{"setting", "level"})
	dryRuns = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_dry_runs_total",
		Help: "Acts that observe mode prevented, by the kind of the workload and the act: Suspend, Halt, Hold, Rollback or Deny.",
	}, []string{"kind", "act"})
	holdStarts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_hold_starts_total",
		Help: "Rollouts that began to wait for their verdicts, by the kind of the workload.",
	}, []string{"kind"})
	holdEnds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_hold_ends_total",
		Help: "Rollouts that ceased to wait for their verdicts, by the kind of the workload and the reason: " +
			"Verified, RanOut, VerificationFailed, EditedByUser, PodsStuck or ReleaseEnded.",
	}, []string{"kind", "reason"})
	admissions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_admission_total",
		Help: "Requests to the webhooks, by the kind of the workload, webhook (mutate, validate, quarantine or policy) " +
			"and decision: unchanged, changed, denied or failed.",
	}, []string{"kind", "webhook", "decision"})
	orderChecksMissing = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "altershield_order_checks_missing_total",
		Help: "Checks of whole orders, PRE or POST, that ended without a verdict.",
	})
	unverifiedPods = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "altershield_unverified_pods_total",
		Help: "Pods that passed without a verdict of AlterShield Server, because it did not answer in time.",
	})
	serverWaits = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "altershield_server_waits_total",
		Help: "Times a release reported a long wait for AlterShield Server: for its order, a check or a verdict.",
	})
	foreignIDs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_foreign_ids_total",
		Help: "Times an id in the status of a record was ignored because another record has it, too, by kind: order or node (an order entry).",
	}, []string{"kind"})
	staleReads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_stale_reads_total",
		Help: "Reads from the API server, because the cache did not show the operator's last write yet, by kind: ChangeWorkload or ChangePod.",
	}, []string{"kind"})
	// A vector without labels has no series until it is set: a gauge would cause a false alarm.
	serverUp = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "altershield_server_up",
		Help: "Whether AlterShield Server answered the last heartbeat of this replica without an error: 1 or 0. Missing without a server.",
	}, nil)
	serverBatches = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "altershield_server_batches",
		Help: "Number of batches with an open entry at AlterShield Server, and of batches that wait for their start, on the leader.",
	}, []string{"state"})
	serverLastAnswer = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "altershield_server_last_answer_timestamp_seconds",
		Help: "When AlterShield Server last answered a heartbeat of this replica without an error, in Unix time.",
	}, nil)
	webhookCertificateExpiry = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "altershield_webhook_certificate_expiry_seconds",
		Help: "When the certificate of the webhooks expires, in Unix time.",
	}, nil)
	mistypedNamespaces = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "altershield_mistyped_namespaces",
		Help: "Namespaces with a mistyped label of the operator, which has no effect. The leader has the number.",
	})
	configurationsMissing = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "altershield_webhook_configuration_missing",
		Help: "1 while a webhook configuration of the operator is missing, else 0, by kind.",
	}, []string{"kind"})
)

func init() {
	metrics.Registry.MustRegister(
		holdStarts, holdEnds, serverWaits, leftWhileBlocked, verdictsCorrected, staleReads, foreignIDs, serverRequests, serverSeconds,
		callbacks, batches, checks, notifications, orderChecksMissing, unverifiedPods, releases, verdicts, verdictSeconds, overrides, rollbacks,
		evictions, undos, rollbacksLimited, defenseLowered, dryRuns, admissions, serverUp, serverLastAnswer,
		serverBatches,
		webhookCertificateExpiry, configurationsMissing, mistypedNamespaces, releaseSeconds, blockSeconds, declarations,
	)
}

// Ways to leave the defense.
const (
	LeftByOptingOut = "opted-out"
	LeftByDeletion  = "deleted"
)

// LeftWhileBlocked counts a workload of a kind that left the defense while it was blocked or had
// quarantined versions.
func LeftWhileBlocked(kind, how string) { leftWhileBlocked.WithLabelValues(kind, how).Inc() }

// VerdictsCorrected counts failing verdicts that were corrected.
func VerdictsCorrected(kind string) { verdictsCorrected.WithLabelValues(kind).Inc() }

// ServerCall counts a call to AlterShield Server.
func ServerCall(c altershield.Call) {
	class := string(altershield.ClassOf(c.Err))
	if c.Err == nil {
		class = "ok"
	}
	serverRequests.WithLabelValues(string(c.Action), class).Inc()
	if c.Attempts > 0 {
		serverSeconds.WithLabelValues(string(c.Action)).Observe(c.Duration.Seconds())
	}
}

// ServerHeartbeat records whether AlterShield Server answered a heartbeat without an
// error, at a time.
func ServerHeartbeat(answered bool, at time.Time) {
	if !answered {
		serverUp.WithLabelValues().Set(0)
		return
	}
	serverUp.WithLabelValues().Set(1)
	serverLastAnswer.WithLabelValues().Set(float64(at.Unix()))
}

// ServerBatches records the number of batches with an open entry at AlterShield Server, and of those that wait.
func ServerBatches(open, waiting int) {
	serverBatches.WithLabelValues("open").Set(float64(open))
	serverBatches.WithLabelValues("waiting").Set(float64(waiting))
}

// Callback counts a request to the callback address.
func Callback(outcome string) { callbacks.WithLabelValues(outcome).Inc() }

// ForeignID counts an ignored id in a status.
func ForeignID(kind string) { foreignIDs.WithLabelValues(kind).Inc() }

// StaleRead counts a read from the API server because the cache was behind.
func StaleRead(kind string) { staleReads.WithLabelValues(kind).Inc() }

// BatchDone counts a batch that is done.
func BatchDone(result string) { batches.WithLabelValues(result).Inc() }

// PodsUnverified counts the pods of a batch that passed without a verdict of the server.
func PodsUnverified(pods int32) { unverifiedPods.Add(float64(pods)) }

// OrderCheckMissing counts a check of an order that ended without a verdict.
func OrderCheckMissing() { orderChecksMissing.Inc() }

// WaitsForServer counts a release that reported a long wait.
func WaitsForServer() { serverWaits.Inc() }

// ReleaseEntered counts a release of a kind of workload that entered a state.
func ReleaseEntered(kind, state string) { releases.WithLabelValues(kind, state).Inc() }

// VerdictStored counts a verdict that was stored.
func VerdictStored(stage string, fails bool) {
	outcome := "pass"
	if fails {
		outcome = "fail"
	}
	verdicts.WithLabelValues(stage, outcome).Inc()
}

// VerdictTook records the duration until a verdict on a batch.
func VerdictTook(stage string, d time.Duration) {
	verdictSeconds.WithLabelValues(stage).Observe(d.Seconds())
}

// Overridden counts a release that passed a block.
func Overridden(kind string) { overrides.WithLabelValues(kind).Inc() }

// Outcomes of alerts for Alertmanager.
const (
	NotificationSent    = "sent"
	NotificationFailed  = "failed"
	NotificationDropped = "dropped"
)

// Notified counts alerts for Alertmanager.
func Notified(outcome string, alerts int) {
	notifications.WithLabelValues(outcome).Add(float64(alerts))
}

// RolledBack counts a release that was rolled back.
func RolledBack(kind, reason string) { rollbacks.WithLabelValues(kind, reason).Inc() }

// Outcomes of the eviction of a stuck pod.
const (
	EvictionDone     = "evicted"
	EvictionBlocked  = "blocked"
	EvictionDenied   = "denied"
	EvictionOutdated = "outdated"
)

// Eviction counts the eviction of a pod of a workload of a kind.
func Eviction(kind, outcome string) { evictions.WithLabelValues(kind, outcome).Inc() }

// Undone counts a release that a user replaced by a good version.
func Undone(kind string) { undos.WithLabelValues(kind).Inc() }

// RollbackLimited counts a release that waits for the rollback limit.
func RollbackLimited(kind string) { rollbacksLimited.WithLabelValues(kind).Inc() }

// Levels at which a setting may lower the defense.
const (
	LevelOperator  = "operator"
	LevelNamespace = "namespace"
	LevelWorkload  = "workload"
)

// DefenseLowered counts a setting that lowered the defense.
func DefenseLowered(setting, level string) { defenseLowered.WithLabelValues(setting, level).Inc() }

// DryRun counts an act of an event DryRun.
func DryRun(kind, act string) { dryRuns.WithLabelValues(kind, act).Inc() }

// HoldStarted counts a rollout that began to wait for its verdicts.
func HoldStarted(kind string) { holdStarts.WithLabelValues(kind).Inc() }

// HoldEnded counts a rollout that ceased to wait for its verdicts, by the reason of its condition.
func HoldEnded(kind, reason string) { holdEnds.WithLabelValues(kind, reason).Inc() }

// Admission counts a request to a webhook about a workload of a kind.
func Admission(kind, webhook, decision string) {
	admissions.WithLabelValues(kind, webhook, decision).Inc()
}

// WebhookCertificate records when the served certificate expires.
func WebhookCertificate(notAfter time.Time) {
	webhookCertificateExpiry.WithLabelValues().Set(float64(notAfter.Unix()))
}

// MistypedNamespaces adds to the number of namespaces with a mistyped label.
func MistypedNamespaces(more int) { mistypedNamespaces.Add(float64(more)) }

// WebhookConfigurationMissing records whether a webhook configuration is missing.
func WebhookConfigurationMissing(kind string, missing bool) {
	value := 0.0
	if missing {
		value = 1
	}
	configurationsMissing.WithLabelValues(kind).Set(value)
}
