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
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// New makes a world in a bubble of testing/synctest. Close ends it.
func New(o Options) *World {
	w := &World{
		api: newAPI(), kinds: cmp.Or(o.Kinds, workload.Defended()), hooks: map[schema.GroupKind]hooks{}, wake: make(chan struct{}, 1),
		verbose: o.Verbose, forgets: o.Forgets, written: map[string]int{}, dial: o.Dial,
	}
	if w.clocks = o.Clocks; len(o.Clocks) == 0 {
		w.clocks = []time.Duration{0, 5 * time.Minute, -5 * time.Minute}
	}
	w.api.admit = w.admission
	w.cluster = newCluster(w.api, o)
	if o.Server {
		w.server = newServer(w, o.ServerOptions)
	}
	ctx := as(context.Background(), writer{user: "admin"})
	for _, name := range []string{OperatorNamespace, Namespace} {
		must(w.api.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	if !o.Unenrolled {
		w.Enrol(true)
	}
	for _, object := range settings.DefaultObjects(OperatorNamespace) {
		if o.Bare {
			break
		}
		if v, ok := o.Settings[object.Name]; ok {
			object.Spec.Enable, object.Spec.Content = v.Enable, v.Content
		}
		must(w.api.client.Create(ctx, &object))
		w.accept(ctx, &object)
	}
	for _, object := range append([]v1alpha1.DefensePolicy{*policy.Default(OperatorNamespace)}, o.Policies...) {
		if !o.Bare {
			w.setPolicy(ctx, &object)
		}
	}
	for i := range o.Endpoints {
		must(w.api.client.Create(ctx, &o.Endpoints[i]))
	}
	for n := range max(o.Processes, 1) {
		w.processes = append(w.processes, w.newProcess(n, o.Lag))
	}
	if !o.Bare {
		// The operator first reads all objects.
		w.For(time.Second)
	}
	if o.Seed != 0 {
		w.random = rand.New(rand.NewPCG(o.Seed, 1))
	}
	w.fault, w.writes, w.calls, w.written = o.Fault, nil, nil, map[string]int{}
	if o.Broken != nil {
		w.broken = o.Broken()
	}
	return w
}

// Close ends everything in the world.
func (w *World) Close() {
	w.down = true
	for _, p := range w.all {
		if !p.dead {
			p.die()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, p := range w.all {
			p.running.Wait()
		}
		if w.server != nil {
			w.server.Shutdown()
		}
	}()
	for {
		w.happen()
		select {
		case <-done:
			return
		case <-w.wake:
		case <-time.After(time.Second):
		}
	}
}
