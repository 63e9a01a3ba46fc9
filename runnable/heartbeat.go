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

package runnable

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/verify"
)

// heartbeatEvery is the time between two heartbeats, plus up to heartbeatSpread. It is no flag: a
// call each half minute costs the server nothing, and is often enough for an alert that waits for
// minutes.
const (
	heartbeatEvery  = 30 * time.Second
	heartbeatSpread = 6 * time.Second
)

// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=pods/status,verbs=patch

// Heartbeat asks AlterShield Server periodically whether it works, so that a failure is known before
// the next release: by a metric, and by a condition of the operator's pod, with an event when the
// condition changes.
//
// Every replica asks: each asks the server at admission, may become the leader, and may be on a node
// that does not reach the server.
//
// The condition is on the operator's own pod, because no workload, release or setting is unhealthy
// when the server is. It is deleted with the pod, so that no condition stays when the server is removed
// from the configuration.
type Heartbeat struct {
	// Ask asks the server; an error means that the server does not work.
	Ask func(ctx context.Context) error
	// Pod is the operator's pod; without a name, no condition is written.
	Pod types.NamespacedName
	// Live reads the pod, because the cache drops most of its fields; Client writes its status.
	Live   client.Reader
	Client client.Client
	// Recorder of the events.
	Recorder events.EventRecorder
	Clock    clock.Clock
	Log      logr.Logger
	// Spread returns a number from 0 up to 1; random if nil.
	Spread func() float64

	health verify.Health
	// written is the last reason that was written.
	written string
}

var (
	_ manager.Runnable               = &Heartbeat{}
	_ manager.LeaderElectionRunnable = &Heartbeat{}
)

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (h *Heartbeat) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (h *Heartbeat) Start(ctx context.Context) error {
	spread := h.Spread
	if spread == nil {
		spread = rand.Float64
	}
	for {
		h.beat(ctx)
		timer := h.Clock.NewTimer(heartbeatEvery + time.Duration(spread()*float64(heartbeatSpread)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// beat asks once, and reports a change.
func (h *Heartbeat) beat(ctx context.Context) {
	err := h.Ask(ctx)
	if ctx.Err() != nil {
		return
	}
	metrics.ServerHeartbeat(err == nil, h.Clock.Now())
	h.health = h.health.After(err)
	if h.health.Reason == "" || h.health.Reason == h.written {
		return
	}
	if err := h.write(ctx); err != nil {
		h.Log.Info("could not write the health of AlterShield Server; trying again with the next heartbeat", "cause", err.Error())
		return
	}
	if h.written != "" || !h.health.Healthy() {
		h.Log.Info("the health of AlterShield Server changed",
			"healthy", h.health.Healthy(), "reason", h.health.Reason, "message", h.health.Message)
	}
	h.written = h.health.Reason
}

// write writes the condition, unless an earlier container of the pod wrote the same.
func (h *Heartbeat) write(ctx context.Context) error {
	if h.Pod.Name == "" {
		return nil
	}
	var pod corev1.Pod
	if err := h.Live.Get(ctx, h.Pod, &pod); err != nil {
		return fmt.Errorf("get pod %s: %w", h.Pod, err)
	}
	before := pod.DeepCopy()
	wanted := corev1.PodCondition{
		Type: v1alpha1.ConditionServerHealthy, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(h.Clock.Now()),
		Reason: h.health.Reason, Message: h.health.Message,
	}
	if h.health.Healthy() {
		wanted.Status = corev1.ConditionTrue
	}
	explained, _ := v1alpha1.Explain("Pod", &metav1.Condition{
		Type: string(wanted.Type), Status: metav1.ConditionStatus(wanted.Status), Reason: wanted.Reason,
	})
	if h.health.Healthy() {
		wanted.Message = ""
	}
	wanted.Message = explained.Message(wanted.Message)
	was := corev1.ConditionUnknown
	if i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == wanted.Type }); i < 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, wanted)
	} else {
		c := &pod.Status.Conditions[i]
		if was = c.Status; was == wanted.Status {
			wanted.LastTransitionTime = c.LastTransitionTime
		}
		if was == wanted.Status && c.Reason == wanted.Reason {
			return nil
		}
		*c = wanted
	}
	// The patch has only this condition: the kubelet writes others.
	if err := h.Client.Status().Patch(ctx, &pod, client.StrategicMergeFrom(before)); err != nil {
		return fmt.Errorf("patch the status of pod %s: %w", h.Pod, err)
	}
	message := v1alpha1.EventMessage(v1alpha1.EventServerHealthChanged, h.health.Message)
	switch {
	case !h.health.Healthy():
		h.Recorder.Eventf(&pod, nil, corev1.EventTypeWarning, v1alpha1.EventServerHealthChanged, "AskServer", "%s", message)
	case was == corev1.ConditionFalse:
		h.Recorder.Eventf(&pod, nil, corev1.EventTypeNormal, v1alpha1.EventServerHealthChanged, "AskServer", "%s", message)
	}
	return nil
}
