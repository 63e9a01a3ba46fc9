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

package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// behind is an API server with a client whose cache changes only by see.
type behind struct {
	client *ownWrites
	server client.WithWatch
	clock  *clocktesting.FakePassiveClock
	// shown is the batch in the cache; nil without one.
	shown *v1alpha1.ChangePod
	// asked is the number of reads from the server.
	asked int
	// held keeps updates of a status from being answered.
	held chan struct{}
}

var batchName = types.NamespacedName{Namespace: "shop", Name: "batch"}

func newBehind(t *testing.T) *behind {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := &behind{clock: clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))}
	b.server = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.ChangePod{}).Build()
	b.client = newOwnWrites(interceptor.NewClient(b.server, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, k client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if b.shown == nil || k != batchName {
				return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("changepods").GroupResource(), k.Name)
			}
			b.shown.DeepCopyInto(o.(*v1alpha1.ChangePod)) //nolint:errcheck // nothing else is read here
			return nil
		},
		SubResourceUpdate: func(
			ctx context.Context, c client.Client, name string, o client.Object, opts ...client.SubResourceUpdateOption,
		) error {
			if b.held != nil {
				<-b.held
			}
			return c.SubResource(name).Update(ctx, o, opts...)
		},
	}), interceptor.NewClient(b.server, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			b.asked++
			return c.Get(ctx, k, o, opts...)
		},
	}), b.clock)
	b.create(t)
	b.see(t)
	return b
}

func (b *behind) create(t *testing.T) {
	t.Helper()
	if err := b.client.Create(t.Context(), wrappers.MakeChangePod(batchName.Namespace, batchName.Name).Obj()); err != nil {
		t.Fatal(err)
	}
}

// see brings the cache up to date.
func (b *behind) see(t *testing.T) {
	t.Helper()
	var now v1alpha1.ChangePod
	switch err := b.server.Get(t.Context(), batchName, &now); {
	case err == nil:
		b.shown = &now
	case apierrors.IsNotFound(err):
		b.shown = nil
	default:
		t.Fatal(err)
	}
}

// submit writes a status through the client.
func (b *behind) submit(t *testing.T, node string) {
	t.Helper()
	var now v1alpha1.ChangePod
	if err := b.server.Get(t.Context(), batchName, &now); err != nil {
		t.Fatal(err)
	}
	now.Status.ChangePodID = node
	if err := b.client.Status().Update(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
}

func (b *behind) delete(t *testing.T) {
	t.Helper()
	if err := b.server.Delete(t.Context(), wrappers.MakeChangePod(batchName.Namespace, batchName.Name).Obj()); err != nil {
		t.Fatal(err)
	}
}

// TestOwnWrites: a read shows this process' last write while the cache lacks it, and waits
// for nothing.
func TestOwnWrites(t *testing.T) {
	for name, test := range map[string]struct {
		do    func(t *testing.T, b *behind)
		want  string // the node in the status that is read; "gone" when there is no batch
		asked int
	}{
		"the cache shows it":         {func(t *testing.T, b *behind) { b.submit(t, "node-1"); b.see(t) }, "node-1", 0},
		"the cache is behind":        {func(t *testing.T, b *behind) { b.submit(t, "node-1") }, "node-1", 1},
		"it shows one of two writes": {func(t *testing.T, b *behind) { b.submit(t, "node-1"); b.see(t); b.submit(t, "node-2") }, "node-2", 1},
		"it shows a later write": {func(t *testing.T, b *behind) {
			b.submit(t, "node-1")
			b.submitByAnother(t, "node-2")
			b.see(t)
		}, "node-2", 0},
		"nothing was written":        {func(t *testing.T, b *behind) { b.submitByAnother(t, "node-1") }, "", 0},
		"created, and not shown yet": {func(_ *testing.T, b *behind) { b.shown = nil }, "", 1},
		"deleted, and still shown":   {func(t *testing.T, b *behind) { b.submit(t, "node-1"); b.delete(t) }, "gone", 1},
		"deleted, and shown as gone": {func(t *testing.T, b *behind) { b.submit(t, "node-1"); b.delete(t); b.see(t) }, "gone", 1},
		"recreated, while the cache shows the first": {func(t *testing.T, b *behind) {
			b.delete(t)
			b.create(t)
			b.submit(t, "node-2")
		}, "node-2", 1},
		"long ago": {func(t *testing.T, b *behind) {
			b.submit(t, "node-1")
			b.clock.SetTime(b.clock.Now().Add(writtenFor + time.Second))
		}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBehind(t)
			test.do(t, b)
			for range 2 { // the first read forgets nothing
				b.asked = 0
				var batch v1alpha1.ChangePod
				err := b.client.Get(t.Context(), batchName, &batch)
				got := batch.Status.ChangePodID
				if apierrors.IsNotFound(err) {
					got = "gone"
				} else if err != nil {
					t.Fatal(err)
				}
				if got != test.want {
					t.Fatalf("read %q, want %q", got, test.want)
				}
				if b.asked > test.asked {
					t.Errorf("asked the API server %d times, want %d at most", b.asked, test.asked)
				}
			}
		})
	}
}

func (b *behind) submitByAnother(t *testing.T, node string) {
	t.Helper()
	var now v1alpha1.ChangePod
	if err := b.server.Get(t.Context(), batchName, &now); err != nil {
		t.Fatal(err)
	}
	now.Status.ChangePodID = node
	if err := b.server.Status().Update(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
}

// TestOwnWritesWaitForNothing: a write without an answer delays no read of any object.
func TestOwnWritesWaitForNothing(t *testing.T) {
	b := newBehind(t)
	b.held = make(chan struct{})
	written := make(chan error)
	go func() {
		held := b.shown.DeepCopy()
		held.Status.ChangePodID = "node-1"
		written <- b.client.Status().Update(t.Context(), held)
	}()
	var batch v1alpha1.ChangePod
	var list v1alpha1.ChangePodList
	if err := b.client.Get(t.Context(), batchName, &batch); err != nil {
		t.Error(err)
	}
	if err := b.client.List(t.Context(), &list); err != nil {
		t.Error(err)
	}
	close(b.held)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err := b.client.Get(t.Context(), batchName, &batch); err != nil || batch.Status.ChangePodID != "node-1" {
		t.Errorf("read %q, %v; want the written node-1", batch.Status.ChangePodID, err)
	}
}

// TestOwnWritesAreForgotten: old batches are forgotten.
func TestOwnWritesAreForgotten(t *testing.T) {
	b := newBehind(t)
	for i := range 200 {
		b.clock.SetTime(b.clock.Now().Add(time.Minute))
		if err := b.client.Create(t.Context(), wrappers.MakeChangePod(batchName.Namespace, fmt.Sprintf("batch-%d", i)).Obj()); err != nil {
			t.Fatal(err)
		}
	}
	kept := 0
	b.client.written.RemoveAll(func(any) bool { kept++; return false })
	if most := int((writtenFor + forgetEvery) / time.Minute); kept > most {
		t.Errorf("%d objects are remembered, want %d at most", kept, most)
	}
}
