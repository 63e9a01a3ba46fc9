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
	"cmp"
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// target is the workload that a command is about.
type target struct {
	kind workload.Kind
	key  types.NamespacedName
}

// String names the workload as kubectl does: deployment/sleep.
func (t target) String() string {
	return workload.ArgumentOf(t.kind.GroupVersionKind().GroupKind()) + "/" + t.key.Name
}

// usageOfTarget stands for the arguments of parseTarget in a usage line.
const usageOfTarget = "[KIND/]NAME"

// parseTarget parses arguments that name a workload: kind/name, kind name, or name alone, which leaves the kind nil. Kinds are named
// as in kubectl: kind, resource, or short name, with or without the group.
func parseTarget(kinds *workload.Registry, namespace string, args ...string) (named target, err error) {
	wanted := strings.Join(args, " ")
	kind, name := "", ""
	switch before, after, found := strings.Cut(args[0], "/"); {
	case found && len(args) == 1:
		kind, name = before, after
	case !found && len(args) == 1:
		name = args[0]
	case !found && len(args) == 2:
		kind, name = args[0], args[1]
	}
	if name == "" || strings.Contains(name, "/") {
		return target{}, remedy(fmt.Errorf("%q names no workload", wanted), "give a kind and a name, as in deployment/sleep")
	}
	if kind == "" && !strings.HasPrefix(wanted, "/") && len(args) == 1 {
		return target{key: types.NamespacedName{Namespace: namespace, Name: name}}, nil
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	var known, several []string
	for _, k := range kinds.Kinds() {
		if names(k, kind) {
			several = append(several, k.Resource()+"."+k.GroupVersionKind().Group+"/"+name)
			if named.kind == nil { // a native kind precedes others of its name, as in kubectl
				named = target{kind: k, key: key}
			}
		}
		known = append(known, workload.ArgumentOf(k.GroupVersionKind().GroupKind()))
	}
	switch {
	case len(several) > 1 && declarationOf(named.kind) != nil:
		return target{}, remedy(fmt.Errorf("%d kinds are named %s", len(several), kind), "name the group, too: "+strings.Join(several, " or "))
	case named.kind != nil:
		return named, nil
	}
	return target{}, remedy(fmt.Errorf("%q is no kind of workload that is defended", kind), "defended kinds: "+strings.Join(known, ", "))
}

// findTarget parses arguments that name a workload. It finds the kind of a name alone in the cluster. If workloads of several kinds
// have the name, the user has to name the kind.
func findTarget(ctx context.Context, r client.Reader, kinds *workload.Registry, namespace string, args ...string) (target, error) {
	named, err := parseTarget(kinds, namespace, args...)
	if err != nil || named.kind != nil {
		return named, err
	}
	var found []target
	var unknown error
	for _, kind := range kinds.Kinds() {
		t := target{kind: kind, key: named.key}
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(kind.GroupVersionKind())
		switch err := r.Get(ctx, t.key, o); {
		case err == nil && enrolledBy(kind, o.Labels):
			found = append(found, t)
		case err == nil:
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		case apierrors.IsForbidden(err), declarationOf(kind) != nil:
			unknown = cmp.Or(unknown, fmt.Errorf("get %s in %s: %w", t, namespace, err))
		default:
			return target{}, fmt.Errorf("get %s in %s: %w", t, namespace, err)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		several := make([]string, len(found))
		for i := range found {
			several[i] = found[i].String()
		}
		return target{}, remedy(fmt.Errorf("%s is the name of %d workloads of the namespace %s", named.key.Name, len(found), namespace),
			"name the kind, too: "+strings.Join(several, " or "))
	case unknown != nil:
		return target{}, unknown
	default:
		return target{}, remedy(fmt.Errorf("there is no workload %s in the namespace %s", named.key.Name, namespace),
			"choose the namespace with -n; see kubectl altershield status --all -A")
	}
}

// shortNames are the short names of kinds in the API server.
var shortNames = map[string]string{"deploy": "deployments.apps", "sts": "statefulsets.apps", "ds": "daemonsets.apps"}

// names reports whether kubectl knows a kind by this word.
func names(k workload.Kind, word string) bool {
	gvk := k.GroupVersionKind()
	word = strings.ToLower(word)
	if whole, ok := shortNames[word]; ok {
		word = whole
	}
	resource, group, _ := strings.Cut(word, ".")
	return (resource == strings.ToLower(gvk.Kind) || resource == k.Resource()) &&
		(group == "" || group == gvk.Group || group == gvk.Version+"."+gvk.Group)
}

// read reads a workload as the API server has it.
func (t target) read(ctx context.Context, r client.Reader) (*unstructured.Unstructured, error) {
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(t.kind.GroupVersionKind())
	err := r.Get(ctx, t.key, stored)
	switch {
	case apierrors.IsNotFound(err):
		return nil, t.gone()
	case err != nil:
		return nil, fmt.Errorf("get %s in %s: %w", t, t.key.Namespace, err)
	}
	return stored, nil
}

// gone returns the error of a workload that does not exist.
func (t target) gone() error {
	return remedy(fmt.Errorf("there is no %s in the namespace %s", t, t.key.Namespace),
		fmt.Sprintf("choose the namespace with -n; see kubectl get %s -A", t.kind.Resource()))
}

// halts returns the words for a halt of workloads of its kind.
func (t target) halts() *workload.Words {
	words := t.kind.Words(&workload.Workload{Name: t.key.Name})
	return &words
}

// reach connects to the cluster, and finds the workload that the arguments name.
func (c *connection) reach(ctx context.Context, args []string) (client.WithWatch, target, error) {
	namespace, err := c.namespace()
	if err != nil {
		return nil, target{}, err
	}
	api, err := c.client()
	if err != nil {
		return nil, target{}, err
	}
	t, err := c.find(ctx, api, namespace, args...)
	return api, t, err
}

// find finds the workload that the arguments name. It reads the declared kinds unless a native kind is named.
func (c *connection) find(ctx context.Context, api client.Client, namespace string, args ...string) (target, error) {
	if t, err := parseTarget(workload.Defended(), namespace, args...); err == nil && t.kind != nil {
		return t, nil
	}
	kinds, err := c.kinds(ctx, api)
	if err != nil {
		return target{}, err
	}
	return findTarget(ctx, api, kinds, namespace, args...)
}
