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

package world

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func (f Fault) String() string {
	what := "write"
	if f.OfCalls {
		what = "call"
	}
	return fmt.Sprintf("%s %s %d", f.Kind, what, f.At)
}

// processClient reads from the cache of its process.
type processClient struct {
	client.WithWatch
	process *Process
}

// Get implements client.Client.
func (c *processClient) Get(ctx context.Context, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	p := c.process
	if err := p.enter(ctx, false); err != nil {
		return err
	}
	return p.cache.Get(ctx, k, o, opts...)
}

// List implements client.Client.
func (c *processClient) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	p := c.process
	if err := p.enter(ctx, false); err != nil {
		return err
	}
	return p.cache.List(ctx, l, opts...)
}

func (p *Process) getLive(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := p.enter(ctx, true); err != nil {
		return err
	}
	if err := c.Get(ctx, k, o, opts...); err != nil {
		return err
	}
	if stored, ok := p.world.api.objects[keyOf(o)]; ok {
		o.SetManagedFields(stored.GetManagedFields()) // the fake client dropped them
	}
	return nil
}

func (p *Process) listLive(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
	if err := p.enter(ctx, true); err != nil {
		return err
	}
	return c.List(ctx, l, opts...)
}

func (p *Process) create(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	return p.write(ctx, "create", o, func(ctx context.Context, o client.Object) error {
		return c.Create(ctx, o, append([]client.CreateOption{fieldOwner}, opts...)...)
	})
}

func (p *Process) update(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
	return p.write(ctx, "update", o, func(ctx context.Context, o client.Object) error {
		return c.Update(ctx, o, append([]client.UpdateOption{fieldOwner}, opts...)...)
	})
}

func (p *Process) patch(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	name := "patch"
	switch kindOf(o) {
	case "Deployment", "StatefulSet", "DaemonSet":
		name = nameOfPatch(o, patch)
	}
	return p.write(ctx, name, o, func(ctx context.Context, o client.Object) error {
		return c.Patch(ctx, o, patch, append([]client.PatchOption{fieldOwner}, opts...)...)
	})
}

func (p *Process) delete(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
	return p.write(ctx, "delete", o, func(ctx context.Context, o client.Object) error { return c.Delete(ctx, o, opts...) })
}

func (p *Process) evict(
	ctx context.Context, c client.Client, subResource string, o, body client.Object, opts ...client.SubResourceCreateOption,
) error {
	return p.write(ctx, "evict", o, func(ctx context.Context, o client.Object) error {
		return c.SubResource(subResource).Create(ctx, o, body, opts...)
	})
}

func (p *Process) updateStatus(
	ctx context.Context, c client.Client, _ string, o client.Object, opts ...client.SubResourceUpdateOption,
) error {
	return p.write(ctx, "update status of", o, func(ctx context.Context, o client.Object) error {
		return c.Status().Update(ctx, o, append([]client.SubResourceUpdateOption{fieldOwner}, opts...)...)
	})
}

func (p *Process) patchStatus(
	ctx context.Context, c client.Client, _ string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	return p.write(ctx, "patch status of", o, func(ctx context.Context, o client.Object) error {
		return c.Status().Patch(ctx, o, patch, append([]client.SubResourcePatchOption{fieldOwner}, opts...)...)
	})
}

// carryOut makes a write, with a fault.
func (p *Process) carryOut(
	ctx context.Context, o client.Object, name string, kind FaultKind, carryOut func(context.Context, client.Object) error,
) error {
	w := p.world
	if p.dead {
		return errDead
	}
	if err := refusal(kind, resourceOf(o), o.GetName()); err != nil {
		return err
	}
	switch kind {
	case DiesBefore:
		p.die()
		return errDead
	case Repeated:
		if err := carryOut(ctx, asObject(o.DeepCopyObject())); err != nil {
			w.note("[%d] first time: %v", p.number, err)
		}
	default:
	}
	before := w.api.history.end()
	err := carryOut(ctx, o)
	if err != nil {
		w.note("[%d] answer: %v", p.number, err)
	}
	switch kind {
	case ListsPast:
		w.past = before
		p.die()
		return errDead
	case WatchesHeld:
		p.heldUntil = time.Now().Add(heldFor)
		return err
	case WatchesRepeat:
		for _, i := range p.cache.all() {
			i.repeat()
		}
		return err
	case DiesAfter:
		p.die()
		return errDead
	case AnswerLost:
		return fmt.Errorf("%s: %w", name, context.DeadlineExceeded)
	default:
		return err
	}
}

// nameOfPatch returns the purpose of a patch of a workload.
func nameOfPatch(o client.Object, patch client.Patch) string {
	data, err := patch.Data(o)
	if err != nil {
		return "patch"
	}
	var operations []struct{ Op, Path string }
	if json.Unmarshal(data, &operations) != nil {
		return "patch"
	}
	does := map[string]bool{}
	for _, operation := range operations {
		does[operation.Op+" "+strings.ReplaceAll(operation.Path, "~1", "/")] = true
	}
	switch {
	case does["replace /spec/template"]:
		return "roll back"
	case does["add /metadata/labels/"+v1alpha1.SuspendLabel]:
		return "block"
	case does["remove /metadata/labels/"+v1alpha1.SuspendLabel]:
		return "lift the block of"
	case does["add /metadata/labels/"+v1alpha1.DefenseStatusLabel]:
		return "acknowledge"
	case does["add /metadata/labels/"+v1alpha1.VersionLabel]:
		return "record"
	default:
		return "patch"
	}
}

// refusal returns the error of a write that is not carried out; nil if it is.
func refusal(kind FaultKind, resource schema.GroupResource, name string) error {
	switch kind {
	case Fails500:
		return apierrors.NewInternalError(fmt.Errorf("etcdserver: leader changed"))
	case Fails503:
		return apierrors.NewServiceUnavailable("apiserver is shutting down")
	case Fails429:
		return apierrors.NewTooManyRequests("too many requests, please try again later", 1)
	case Fails504:
		return apierrors.NewTimeoutError("request did not complete within the allowed timeout", 0)
	case Conflicts:
		return apierrors.NewConflict(resource, name, fmt.Errorf("the object has been modified"))
	case Forbids:
		denied := fmt.Errorf(`admission webhook "policy.example.com" denied the request`)
		return &apierrors.StatusError{ErrStatus: apierrors.NewForbidden(resource, name, denied).ErrStatus}
	case Rejects:
		err := apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: resource.Resource}, name, field.ErrorList{
			field.Forbidden(field.NewPath("metadata"), "not by this policy"),
		})
		err.ErrStatus.Code = http.StatusUnprocessableEntity
		return err
	default:
		return nil
	}
}

// write counts a write of the operator, and makes it.
func (p *Process) write(ctx context.Context, verb string, o client.Object, carryOut func(context.Context, client.Object) error) error {
	defer p.hearDate()
	if err := p.enter(ctx, true); err != nil {
		return err
	}
	w := p.world
	name := fmt.Sprintf("%s %s %s", verb, kindOf(o), o.GetName())
	w.written[verb+" "+kindOf(o)]++
	if !w.forgets {
		w.writes = append(w.writes, name)
	}
	kind := NoFault
	if w.fault.Kind != NoFault && !w.fault.OfCalls && len(w.writes) == w.fault.At {
		kind = w.fault.Kind
		w.hit = name
	}
	w.did("the operator writes: %s", name)
	w.note("[%d] write %d: %s %s", p.number, len(w.writes), name, kind)
	ctx = as(ctx, writer{user: Operator, operator: true})
	do := func() error { return p.carryOut(ctx, o, name, kind, carryOut) }
	if w.broken != nil {
		return w.broken(name, do)
	}
	return do()
}

// hearDate learns the time from an answer of the API server.
func (p *Process) hearDate() { p.clock.Learn(time.Now().UTC().Format(http.TimeFormat)) }
