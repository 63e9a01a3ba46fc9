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

package hub

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// counted is a reader that counts reads.
type counted struct {
	client.Reader
	reads int
}

func (c *counted) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	c.reads++
	return nil
}

func (c *counted) List(context.Context, client.ObjectList, ...client.ListOption) error {
	c.reads++
	return nil
}

// leaves is a kind that is enrolled by label, with objects without the label that leave the defense.
type leaves struct {
	*declared.Workloads
	all bool
}

func (l leaves) CachesAll() bool { return l.all }

func TestSelects(t *testing.T) {
	c := &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: "configmaps"}}
	c.Spec.Version, c.Spec.Enrolment = "v1", v1alpha1.EnrolledByLabel
	k, problem := declared.Accept(c, declared.Served{Kind: "ConfigMap", Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	d := declared.NewWorkloads(k)
	if selects(d) == nil || selects(leaves{d, false}) == nil || selects(leaves{d, true}) != nil {
		t.Error(selects(d), selects(leaves{d, false}), selects(leaves{d, true}))
	}
}

func TestReadsWithoutDeclaredKind(t *testing.T) {
	object := func(apiVersion, kind string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	}
	metadata := func(apiVersion, kind string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
	}
	for name, test := range map[string]struct {
		object client.Object
		list   client.ObjectList
		none   bool
	}{
		"Deployment":  {object: workload.Deployment{}.Object()},
		"Deployments": {list: workload.Deployment{}.ObjectList()},
		"StatefulSet": {object: workload.StatefulSet{}.Object()},
		"DaemonSets":  {list: workload.DaemonSet{}.ObjectList()},
		"ReplicaSet, between Deployments and pods": {object: object("apps/v1", "ReplicaSet")},
		"ControllerRevision with its type":         {object: &appsv1.ControllerRevision{}},
		"metadata of a Namespace":                  {object: metadata("v1", "Namespace")},
		"metadata of a CustomResourceDefinition":   {object: metadata("apiextensions.k8s.io/v1", "CustomResourceDefinition")},
		"another version":                          {object: object("apps/v1beta2", "Deployment"), none: true},
		"metadata of a Deployment":                 {object: metadata("apps/v1", "Deployment"), none: true},
		"kind that is not declared":                {object: object("example.com/v1", "Widget"), none: true},
	} {
		t.Run(name, func(t *testing.T) {
			main := &counted{}
			kinds := workload.NewRegistry(workload.Deployment{}, workload.StatefulSet{}, workload.DaemonSet{})
			r := reader{hub: New(t.Context(), kinds), main: main}
			var err error
			if test.list != nil {
				err = r.List(t.Context(), test.list)
			} else {
				err = r.Get(t.Context(), client.ObjectKey{}, test.object)
			}
			if errors.Is(err, ErrNoCache) != test.none || (main.reads == 0) != test.none {
				t.Errorf("%d reads of the manager's cache, %v", main.reads, err)
			}
		})
	}
}
