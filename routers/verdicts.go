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

package routers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// nodeWait is how long a verdict waits for what it is about to be recorded:
	// a callback may be faster than the write of the answer to the submission
	// that caused it, and two writes at once cost a third.
	nodeWait = time.Second
	// nodeLook is between two looks meanwhile.
	nodeLook = 10 * time.Millisecond
	// writeTries bounds how often a verdict is put into an object that changes
	// at the same time.
	writeTries = 10
)

// Verdicts stores the verdicts of the server where the controllers find them:
// on the batch or the release they are about, in fields that nothing else
// writes. Any replica may do it, at the same time as others.
type Verdicts struct {
	// Client reads from the cache.
	Client client.Client
	// Live reads from the API server.
	Live  client.Reader
	Kind  workload.Kind
	Clock clock.PassiveClock
	// wait is nodeWait, unless a test knows better.
	wait time.Duration
}

var _ Recorder = &Verdicts{}

// Record implements Recorder.
func (v *Verdicts) Record(ctx context.Context, c *altershield.Callback) (Outcome, error) {
	r := &c.Request
	delivered := defense.Delivered{
		OrderID: r.BizExecOrderID,
		OfOrder: c.CheckType == altershield.CheckOrder,
		NodeID:  r.NodeID,
		Stage:   v1alpha1.CheckStage(r.Stage),
		Verdict: strings.ToLower(altershield.Cut(string(r.Verdict.Verdict), 64)),
		Message: r.Verdict.Explanation(),
	}
	placement, err := v.place(ctx, delivered)
	switch placement {
	case defense.PlacementStored:
		metrics.VerdictStored(string(delivered.Stage), defense.VerdictFails(delivered.Verdict))
		return OutcomeRecorded, err
	case defense.PlacementKnown:
		return OutcomeDuplicate, err
	case defense.PlacementLate:
		return OutcomeIgnored, err
	case defense.PlacementFull:
		return "", errors.Join(err, errors.New("too many verdicts wait for their nodes to be known"))
	default:
		return OutcomeUnknown, err
	}
}

// place finds what a verdict is about and stores it there.
func (v *Verdicts) place(ctx context.Context, d defense.Delivered) (defense.Placement, error) {
	var change *v1alpha1.ChangeWorkload
	var batch *v1alpha1.ChangePod
	look := func(ctx context.Context) (bool, error) {
		var err error
		if batch, err = v.batchOf(ctx, d); err != nil || batch != nil {
			return batch != nil && defense.AwaitsOnBatch(&batch.Status, d), err
		}
		change, err = v.changeOf(ctx, d.OrderID)
		return change != nil && defense.AwaitsOnRelease(&change.Status, d), err
	}
	if err := wait.PollUntilContextTimeout(ctx, nodeLook, cmp.Or(v.wait, nodeWait), true, look); err != nil && !wait.Interrupted(err) {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if batch != nil {
		return v.placeOnBatch(ctx, batch, d)
	}
	if change == nil {
		// This replica's cache may be behind.
		var err error
		if change, err = v.changeLive(ctx, d.OrderID); err != nil || change == nil {
			return defense.PlacementElsewhere, err
		}
	}
	return v.placeOnChange(ctx, change, d)
}

// batchOf finds the batch that is a node of the server; nil when none is, yet.
func (v *Verdicts) batchOf(ctx context.Context, d defense.Delivered) (*v1alpha1.ChangePod, error) {
	var list v1alpha1.ChangePodList
	if err := v.Client.List(ctx, &list, client.MatchingFields{workload.IndexByNode: d.NodeID}, client.DisableReadYourWritesConsistency); err != nil {
		return nil, fmt.Errorf("find the changepod of node %s: %w", d.NodeID, err)
	}
	i := slices.IndexFunc(list.Items, func(b v1alpha1.ChangePod) bool { return b.Status.OrderID == d.OrderID })
	if i < 0 {
		return nil, nil
	}
	return &list.Items[i], nil
}

func (v *Verdicts) changeOf(ctx context.Context, orderID string) (*v1alpha1.ChangeWorkload, error) {
	var list v1alpha1.ChangeWorkloadList
	if err := v.Client.List(ctx, &list, client.MatchingFields{workload.IndexByOrder: orderID}, client.DisableReadYourWritesConsistency); err != nil {
		return nil, fmt.Errorf("find the changeworkload of order %s: %w", orderID, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return &list.Items[0], nil
}

// changeLive finds the release of an order on the API server, by the version in
// the order's id.
func (v *Verdicts) changeLive(ctx context.Context, orderID string) (*v1alpha1.ChangeWorkload, error) {
	version := defense.VersionOfOrder(orderID)
	if version == "" {
		return nil, nil
	}
	var list v1alpha1.ChangeWorkloadList
	if err := v.Live.List(ctx, &list, client.MatchingLabels{v1alpha1.VersionLabel: version}); err != nil {
		return nil, fmt.Errorf("find the changeworkload of order %s: %w", orderID, err)
	}
	i := slices.IndexFunc(list.Items, func(c v1alpha1.ChangeWorkload) bool { return c.Status.OrderID == orderID })
	if i < 0 {
		return nil, nil
	}
	return &list.Items[i], nil
}

func (v *Verdicts) placeOnBatch(ctx context.Context, batch *v1alpha1.ChangePod, d defense.Delivered) (defense.Placement, error) {
	ref := metav1.GetControllerOf(batch)
	if ref == nil {
		return defense.PlacementElsewhere, nil
	}
	var change v1alpha1.ChangeWorkload
	key := types.NamespacedName{Namespace: batch.Namespace, Name: ref.Name}
	if err := v.Client.Get(ctx, key, &change, client.DisableReadYourWritesConsistency); err != nil {
		return defense.PlacementElsewhere, client.IgnoreNotFound(err)
	}
	if defended, err := v.defended(ctx, &change); err != nil || !defended {
		return defense.PlacementLate, err
	}
	placement, err := store(ctx, v, batch, func() defense.Placement { return defense.PlaceOnBatch(&batch.Status, d, v.Clock.Now()) })
	if placement == defense.PlacementStored {
		submitted := batch.Status.PostSubmitTimeUnix
		if d.Stage == v1alpha1.StagePre {
			submitted = batch.Status.PreSubmitTimeUnix
		}
		metrics.VerdictTook(string(d.Stage), v.Clock.Since(time.Unix(submitted, 0)))
	}
	return placement, err
}

func (v *Verdicts) placeOnChange(ctx context.Context, change *v1alpha1.ChangeWorkload, d defense.Delivered) (defense.Placement, error) {
	if defended, err := v.defended(ctx, change); err != nil || !defended {
		return defense.PlacementLate, err
	}
	return store(ctx, v, change, func() defense.Placement { return defense.PlaceOnRelease(&change.Status, d, v.Clock.Now()) })
}

// defended says that a release is still under defense: nothing is written about
// one that is not.
func (v *Verdicts) defended(ctx context.Context, change *v1alpha1.ChangeWorkload) (bool, error) {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := v.Client.Get(ctx, types.NamespacedName{Name: change.Namespace}, ns, client.DisableReadYourWritesConsistency); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	ref := metav1.GetControllerOf(change)
	if ref == nil || ns.DeletionTimestamp != nil || !defense.NamespaceEnrolled(ns.Name, ns.Labels) {
		return false, nil
	}
	w, err := v.Kind.Get(ctx, v.Client, types.NamespacedName{Namespace: change.Namespace, Name: ref.Name})
	return w != nil && w.UID == ref.UID && !w.Deleting && !defense.OptedOut(w.Labels), err
}

// store puts a verdict into the status of an object, and again into the object
// as it has become when it changed meanwhile.
func store(ctx context.Context, v *Verdicts, object client.Object, put func() defense.Placement) (defense.Placement, error) {
	uid := object.GetUID()
	for range writeTries {
		placement := put()
		if placement != defense.PlacementStored {
			return placement, nil
		}
		err := v.Client.Status().Update(ctx, object, client.FieldOwner(v1alpha1.CallbackFieldManager))
		switch {
		case err == nil:
			return placement, nil
		case apierrors.IsNotFound(err):
			return defense.PlacementLate, nil
		case !apierrors.IsConflict(err):
			return "", fmt.Errorf("store the verdict in %s: %w", object.GetName(), err)
		}
		if err := v.Live.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil || object.GetUID() != uid {
			return defense.PlacementLate, client.IgnoreNotFound(err)
		}
	}
	return "", fmt.Errorf("store the verdict in %s: it changes all the time", object.GetName())
}
