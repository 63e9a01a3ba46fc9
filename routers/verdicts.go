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
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// entryWait is how long a verdict waits until its order entry is recorded. A callback may
	// be faster than the write that records the answer to the submission, and concurrent
	// writes conflict. The wait is short, because a server that waits for an answer sends no
	// other callback meanwhile.
	entryWait = time.Second
	// entryLook is the time between two reads in that wait.
	entryLook = 10 * time.Millisecond
	// conflictWait is the time between two tries to write a verdict into an object that
	// another replica writes, with a random part.
	conflictWait = 20 * time.Millisecond
)

// Verdicts stores the verdicts of the server for the controllers: in the status of the batch
// or of the release, in fields that nothing else writes. If a verdict changes only that status,
// the change is decided as in the controllers and written with the verdict. Several replicas may
// store verdicts at the same time.
type Verdicts struct {
	cluster.View
	Client client.Client
	Clock  clock.PassiveClock
	// wait is entryWait, except in tests.
	wait time.Duration
	// writing makes verdicts on the same object wait for each other.
	writing *network.Places
}

var _ Recorder = &Verdicts{}

// NewVerdicts returns a Verdicts that writes through the client.
func NewVerdicts(view cluster.View, c client.Client, by clock.PassiveClock) *Verdicts {
	return &Verdicts{View: view, Client: c, Clock: by, wait: entryWait, writing: network.NewPlaces(math.MaxInt64, 1)}
}

// Record implements Recorder.
func (v *Verdicts) Record(ctx context.Context, c *altershield.Callback) (Outcome, error) {
	r := &c.Request
	delivered := server.Delivered{
		OrderID: r.BizExecOrderID,
		OfOrder: c.CheckType == altershield.CheckOrder,
		NodeID:  r.NodeID,
		Stage:   v1alpha1.CheckStage(r.Stage),
		Verdict: strings.ToLower(altershield.Cut(string(r.Verdict.Verdict), 64)),
		Message: r.Verdict.Explanation(),
		LatePre: r.LatePre(),
	}
	placement, err := v.place(ctx, delivered)
	switch placement {
	case server.PlacementStored:
		metrics.VerdictStored(string(delivered.Stage), record.VerdictFails(delivered.Verdict))
		return OutcomeRecorded, err
	case server.PlacementKnown:
		return OutcomeDuplicate, err
	case server.PlacementLate, server.PlacementGone:
		return OutcomeIgnored, err
	case server.PlacementFull:
		return "", errors.Join(err, errors.New("too many verdicts wait for their order entries to be known"))
	default:
		return OutcomeUnknown, err
	}
}

// place finds the batch or the release of a verdict, and stores the verdict there.
func (v *Verdicts) place(ctx context.Context, d server.Delivered) (server.Placement, error) {
	var change *v1alpha1.ChangeWorkload
	var batch *v1alpha1.ChangePod
	not := foreign{}
	look := func(ctx context.Context) (bool, error) {
		var err error
		if batch, err = v.batchOf(ctx, d, not); err != nil || batch != nil {
			return batch != nil && server.AwaitsOnBatch(&batch.Status, d), err
		}
		change, err = ownerOfOrder(ctx, v.Cached, client.MatchingFields{workload.IndexByOrder: d.OrderID}, d.OrderID, not)
		return change != nil && server.AwaitsOnRelease(&change.Status, d), err
	}
	if err := wait.PollUntilContextTimeout(ctx, entryLook, v.wait, true, look); err != nil && !wait.Interrupted(err) {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if batch != nil {
		if placement, err := v.placeOnBatch(ctx, batch, d); placement != server.PlacementGone {
			return placement, err
		}
		// The batch was folded. Its release knows its entry.
	}
	if version := server.VersionOfOrder(d.OrderID); change == nil && version != "" {
		// The cache of this replica may be behind. The id contains the version.
		var err error
		if change, err = ownerOfOrder(ctx, v.Live, client.MatchingLabels{v1alpha1.VersionLabel: version}, d.OrderID, not); err != nil {
			return server.PlacementElsewhere, err
		}
	}
	if change == nil {
		return server.PlacementElsewhere, nil
	}
	return v.placeOnChange(ctx, change, d)
}

// batchOf finds the batch of an order entry; nil if there is none yet.
func (v *Verdicts) batchOf(ctx context.Context, d server.Delivered, not foreign) (*v1alpha1.ChangePod, error) {
	if d.OfOrder {
		return nil, nil
	}
	var list v1alpha1.ChangePodList
	by := client.MatchingFields{workload.IndexByNode: d.NodeID}
	if err := v.Cached.List(ctx, &list, by); err != nil {
		return nil, fmt.Errorf("find the changepod of order entry %s: %w", d.NodeID, err)
	}
	var found *v1alpha1.ChangePod
	for i := range list.Items {
		batch := &list.Items[i]
		if batch.Status.OrderID != d.OrderID {
			continue
		}
		change, err := v.releaseOf(ctx, batch)
		switch {
		case err != nil:
			return nil, err
		case change == nil || !server.OwnsEntry(change, batch):
			not.note(ctx, "node", batch)
		case found != nil:
			not.note(ctx, "node", batch)
			return nil, fmt.Errorf("%w name order entry %s", errSeveral, d.NodeID)
		default:
			found = batch
		}
	}
	return found, nil
}

// foreign has the records with ids that belong to another record. Each is reported once for
// one verdict.
type foreign map[types.UID]bool

func (f foreign) note(ctx context.Context, kind string, record client.Object) {
	if f[record.GetUID()] {
		return
	}
	f[record.GetUID()] = true
	metrics.ForeignID(kind)
	log.FromContext(ctx).Info("a verdict is not for a record although its status has the id",
		"kind", kind, "record", client.ObjectKeyFromObject(record))
}

// errSeveral means that several records name one order entry, so that none of them gets the verdict.
var errSeveral = errors.New("several changepods of one order")

// releaseOf returns the release of a batch; nil if there is none.
func (v *Verdicts) releaseOf(ctx context.Context, batch *v1alpha1.ChangePod) (*v1alpha1.ChangeWorkload, error) {
	ref := metav1.GetControllerOf(batch)
	if ref == nil {
		return nil, nil
	}
	var change v1alpha1.ChangeWorkload
	key := types.NamespacedName{Namespace: batch.Namespace, Name: ref.Name}
	if err := v.Cached.Get(ctx, key, &change); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &change, nil
}

// ownerOfOrder returns the release that owns the order; nil if it is not in the list. The id
// names the record, so two releases cannot own an order.
func ownerOfOrder(
	ctx context.Context, from client.Reader, by client.ListOption, orderID string, not foreign,
) (*v1alpha1.ChangeWorkload, error) {
	var list v1alpha1.ChangeWorkloadList
	if err := from.List(ctx, &list, by); err != nil {
		return nil, fmt.Errorf("find the changeworkload of order %s: %w", orderID, err)
	}
	var owner *v1alpha1.ChangeWorkload
	for i := range list.Items {
		switch c := &list.Items[i]; {
		case c.Status.OrderID != orderID:
		case server.OwnsOrder(c):
			owner = c
		default:
			not.note(ctx, "order", c)
		}
	}
	return owner, nil
}

func (v *Verdicts) placeOnBatch(ctx context.Context, batch *v1alpha1.ChangePod, d server.Delivered) (server.Placement, error) {
	change, err := v.releaseOf(ctx, batch)
	if err != nil || change == nil {
		return server.PlacementElsewhere, err
	}
	set, err := v.settingsOf(ctx, change)
	if err != nil || set == nil {
		return server.PlacementLate, err
	}
	was := batch.Status.Status
	placement, err := store(ctx, v, batch, server.AwaitsOnBatch(&batch.Status, d), func() server.Placement {
		placement, status := server.ApplyToBatch(server.BatchInput{
			Now: v.Clock.Now(), Settings: *set, Batch: batch, Change: change, Server: true,
		}, d)
		if was = batch.Status.Status; status != nil {
			batch.Status = *status
		}
		return placement
	})
	if placement == server.PlacementStored {
		submitted := batch.Status.PostSubmitTimeUnix
		if d.Stage == v1alpha1.StagePre {
			submitted = batch.Status.PreSubmitTimeUnix
		}
		metrics.VerdictTook(string(d.Stage), v.Clock.Since(time.Unix(submitted, 0)))
		if was != batch.Status.Status && batch.Status.Status == v1alpha1.ChangePodExecuteDone {
			metrics.BatchDone(batch.Status.Message)
		}
	}
	return placement, err
}

func (v *Verdicts) placeOnChange(ctx context.Context, change *v1alpha1.ChangeWorkload, d server.Delivered) (server.Placement, error) {
	set, err := v.settingsOf(ctx, change)
	if err != nil || set == nil {
		return server.PlacementLate, err
	}
	return store(ctx, v, change, server.AwaitsOnRelease(&change.Status, d), func() server.Placement {
		placement, status := server.ApplyToRelease(server.OrderInput{Now: v.Clock.Now(), Settings: *set, Change: change, Defended: true}, d)
		if status != nil {
			change.Status = *status
		}
		return placement
	})
}

// settingsOf returns the settings in force for a defended release; nil if the release is not defended, and then
// nothing is written about it. The server sends each verdict once, so the API server decides if the cache does not
// show that the release is defended: a replica that was paused may have the batch before the workload.
func (v *Verdicts) settingsOf(ctx context.Context, change *v1alpha1.ChangeWorkload) (*settings.Settings, error) {
	w, err := v.DefendedOwner(ctx, change)
	if err != nil {
		return nil, err
	}
	var inForce settings.InForce
	if w != nil {
		inForce, err = v.InForceOf(ctx, w, change)
		return &inForce.Settings, err
	}
	if defended, err := v.DefendedLive(ctx, change); err != nil || !defended {
		return nil, err
	}
	inForce, err = v.InForceIn(ctx, change.Namespace)
	return &inForce.Settings, err
}

// store writes a verdict into the status of an object. current means that the object, from the cache, shows the
// call that caused the verdict: then it is written as it is. If the object changed since it was read, store reads
// it from the API server and repeats the write.
func store(
	ctx context.Context, v *Verdicts, object client.Object, current bool, put func() server.Placement,
) (server.Placement, error) {
	uid := object.GetUID()
	unlock, err := v.writing.Take(ctx, string(uid), 1)
	if err != nil {
		return "", fmt.Errorf("store the verdict in %s: %w", object.GetName(), err)
	}
	defer unlock()
	for ; ; current = false {
		if !current {
			if err := v.Live.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil || object.GetUID() != uid {
				return server.PlacementGone, client.IgnoreNotFound(err)
			}
		}
		if placement := put(); placement != server.PlacementStored {
			if current {
				continue
			}
			return placement, nil
		}
		err := v.Client.Status().Update(ctx, object, client.FieldOwner(v1alpha1.CallbackFieldManager))
		switch {
		case err == nil:
			return server.PlacementStored, nil
		case apierrors.IsNotFound(err):
			return server.PlacementGone, nil
		case !apierrors.IsConflict(err):
			return "", fmt.Errorf("store the verdict in %s: %w", object.GetName(), err)
		case current:
			continue
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("store the verdict in %s, which changes all the time: %w", object.GetName(), ctx.Err())
		case <-time.After(wait.Jitter(conflictWait, 1)):
		}
	}
}
