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

package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// guardedCluster has one blocked workload, and an admission that uses the label up. Its dry runs store nothing.
type guardedCluster struct {
	client.WithWatch
	// refuses: admission denies each change of the template.
	refuses bool
	// freed: a user lifts the block before a write.
	freed bool
}

func newGuardedCluster(t *testing.T, stored *unstructured.Unstructured) *guardedCluster {
	t.Helper()
	g := &guardedCluster{}
	funcs := interceptor.Funcs{Patch: g.patch}
	g.WithWatch = fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(stored).WithInterceptorFuncs(funcs).Build()
	return g
}

func (g *guardedCluster) patch(
	ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption,
) error {
	options := client.PatchOptions{}
	options.ApplyOptions(opts)
	dry := slices.Contains(options.DryRun, metav1.DryRunAll)
	before := &appsv1.Deployment{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), before); err != nil {
		return err
	}
	if g.freed && !dry {
		delete(before.Labels, v1alpha1.SuspendLabel)
		if err := c.Update(ctx, before); err != nil {
			return err
		}
	}
	scratch := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(before).Build()
	after := before.DeepCopy()
	if err := scratch.Patch(ctx, after, patch); err != nil {
		deployments := schema.GroupResource{Resource: "deployments"}
		status := apierrors.NewGenericServerResponse(422, "patch", deployments, o.GetName(), err.Error(), 0, true)
		status.ErrStatus.Message, status.ErrStatus.Details = "the server rejected our request due to an error in our request", nil
		return status
	}
	if after.Spec.Template.Spec.Containers[0].Image != before.Spec.Template.Spec.Containers[0].Image {
		if g.refuses {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, o.GetName(), errors.New("a policy denies it"))
		}
		if defense.DeniedBy(before.Labels, before.Annotations, time.Now()).Any() {
			delete(after.Labels, v1alpha1.IgnoredSuspendLabel)
		}
	}
	u, ok := o.(*unstructured.Unstructured)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	if !ok || err != nil {
		return fmt.Errorf("%T, %w", o, err)
	}
	u.Object = content
	u.SetGroupVersionKind(workload.Deployment{}.GroupVersionKind())
	w, err := readStored(workload.Deployment{}, u)
	if err != nil {
		return err
	}
	labels := map[string]string{v1alpha1.VersionLabel: w.Version}
	maps.Copy(labels, after.Labels)
	labels[v1alpha1.VersionLabel] = w.Version
	u.SetLabels(labels)
	if dry {
		return nil
	}
	after.Labels, after.ResourceVersion = labels, before.ResourceVersion
	return c.Update(ctx, after)
}

// TestOverrideLeavesNothingBehind overrides the block of a workload whose label is stale, or whose block is lifted meanwhile.
func TestOverrideLeavesNothingBehind(t *testing.T) {
	const label = v1alpha1.IgnoredSuspendLabel
	to := func(image string) overrideFlags { return overrideFlags{images: []string{"main=" + image}} }
	for name, tt := range map[string]struct {
		flags                 overrideFlags
		stale, refuses, freed bool
		wantImage             string
		// wantLabel: the label exists afterwards.
		wantLabel bool
		wantErr   []string
		wantOut   string
	}{
		"another image":        {flags: to("main:2"), wantImage: "main:2", wantOut: "its Success lifts the block"},
		"the next":             {flags: overrideFlags{next: true}, wantImage: "main:1", wantLabel: true},
		"another image, stale": {flags: to("main:2"), stale: true, wantImage: "main:2", wantOut: "label removed"},
		"the same image":       {flags: to("main:1"), wantImage: "main:1", wantErr: []string{"nothing would be released"}},
		"the same image, stale": {
			flags: to("main:1"), stale: true, wantImage: "main:1", wantLabel: true, wantErr: []string{"nothing would be released"},
		},
		"refused": {flags: to("main:2"), refuses: true, wantImage: "main:1", wantErr: []string{"a policy denies it"}},
		"refused, stale": {
			flags: to("main:2"), refuses: true, stale: true, wantImage: "main:1",
			wantErr: []string{"a policy denies it", "did not count, was removed"},
		},
		"the block is lifted": {flags: to("main:2"), freed: true, wantImage: "main:1", wantErr: []string{"changed at the same time"}},
		"the block is lifted, before next": {
			flags: overrideFlags{next: true}, freed: true, wantImage: "main:1", wantErr: []string{"changed at the same time"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := testConnection(t)
			change := &changer{connection: c, dryRun: dryRunNone}
			s := situationOf(t, func(d *appsv1.Deployment) {
				d.Labels = map[string]string{v1alpha1.SuspendLabel: "1"}
				d.Spec.Template.Labels = map[string]string{"app": "sleep"}
				if tt.stale {
					d.Labels[label] = v1alpha1.IgnoredSuspendValue
					d.Annotations = map[string]string{v1alpha1.OverrideStaleAnnotation: "1"}
				}
			})
			api := newGuardedCluster(t, s.stored)
			api.refuses, api.freed = tt.refuses, tt.freed
			if err := api.Get(t.Context(), s.key, s.stored); err != nil {
				t.Fatal(err)
			}
			err := change.override(t.Context(), api, s, tt.flags)
			if (err == nil) != (tt.wantErr == nil) {
				t.Errorf("%v, want %q", err, tt.wantErr)
			}
			for _, want := range tt.wantErr {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
			if !strings.Contains(out.String(), tt.wantOut) {
				t.Errorf("it prints\n%s\nwant %q", out, tt.wantOut)
			}
			d := &appsv1.Deployment{}
			if err := api.Get(t.Context(), s.key, d); err != nil {
				t.Fatal(err)
			}
			if got := d.Spec.Template.Spec.Containers[0].Image; got != tt.wantImage || (d.Labels[label] != "") != tt.wantLabel {
				t.Errorf("image %s, labels %v; want %s, label: %t", got, d.Labels, tt.wantImage, tt.wantLabel)
			}
		})
	}
}
