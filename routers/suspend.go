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
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// SuspendPath lists the Deployments whose releases are blocked, of one namespace
	// (parameter "namespace") or of all.
	SuspendPath = "/openapi/altershield/suspend/deployment"
	// SuspendWorkloadPath lists the workloads whose releases are blocked, of all kinds or
	// of one (parameter "kind").
	SuspendWorkloadPath = "/openapi/altershield/suspend/workload"
)

// suspendAnswer is the answer of SuspendPath.
type suspendAnswer struct {
	Code        int         `json:"code"`
	Message     string      `json:"message"`
	Deployments []suspended `json:"deployments"`
}

// suspendWorkloadAnswer is the answer of SuspendWorkloadPath.
type suspendWorkloadAnswer struct {
	Code      int                 `json:"code"`
	Message   string              `json:"message"`
	Workloads []suspendedWorkload `json:"workloads"`
}

// suspendedWorkload is a workload of any kind whose releases are blocked. Its name is also in
// deploymentName.
type suspendedWorkload struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	suspended
}

// suspended is a workload whose releases are blocked.
type suspended struct {
	DeploymentName string `json:"deploymentName"`
	Namespace      string `json:"namespace"`
	// NowVersion is the version of the current release.
	NowVersion string `json:"nowVersion"`
	// SuccessVersion is the newest other version that succeeded, to go back to.
	HasSuccessVersion bool   `json:"hasSuccessVersion"`
	SuccessVersion    string `json:"successVersion"`
	// SuspendedAt is in Unix seconds; 0 if the label cannot be read.
	SuspendedAt int64 `json:"suspendedAt"`
	// FailedPods are the failed pods of the version that caused the block, if its
	// ChangeWorkload lists them.
	FailedPods []string `json:"failedPods"`
}

func (s *Server) listSuspended(w http.ResponseWriter, r *http.Request) {
	found, problem := s.suspendedBy(r, []workload.Kind{deployments}, "namespace")
	if problem != nil {
		writeJSON(w, problem.Code, problem)
		return
	}
	answer := suspendAnswer{Code: http.StatusOK, Message: fmt.Sprintf("suspended deployments: %d", len(found)), Deployments: []suspended{}}
	for i := range found {
		answer.Deployments = append(answer.Deployments, found[i].suspended)
	}
	writeJSON(w, http.StatusOK, answer)
}

func (s *Server) listSuspendedWorkloads(w http.ResponseWriter, r *http.Request) {
	found, problem := s.suspendedBy(r, s.opts.View.Kinds.Kinds(), "namespace", "kind")
	if problem != nil {
		writeJSON(w, problem.Code, problem)
		return
	}
	writeJSON(w, http.StatusOK, suspendWorkloadAnswer{
		Code: http.StatusOK, Message: fmt.Sprintf("suspended workloads: %d", len(found)), Workloads: found,
	})
}

// suspendedBy lists the blocked workloads of these kinds that a request selects by these
// parameters. If it fails, problem is the answer.
func (s *Server) suspendedBy(
	r *http.Request, kinds []workload.Kind, parameters ...string,
) (found []suspendedWorkload, problem *codeAnswer) {
	query := r.URL.Query()
	for key, values := range query {
		// The signature covers neither the path nor the method. So a query must not be valid
		// for another path.
		if !slices.Contains(parameters, key) || len(values) > 1 {
			return nil, &codeAnswer{http.StatusBadRequest,
				fmt.Sprintf("unknown or repeated parameter %q; known: %s", key, strings.Join(parameters, ", "))}
		}
	}
	namespace, of := query.Get("namespace"), query.Get("kind")
	if problems := validation.IsDNS1123Label(namespace); namespace != "" && len(problems) > 0 {
		return nil, &codeAnswer{http.StatusBadRequest, "the parameter namespace is not the name of a namespace: " + strings.Join(problems, "; ")}
	}
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k workload.Kind) bool {
		return of != "" && !strings.EqualFold(of, k.GroupVersionKind().Kind)
	})
	if len(kinds) == 0 {
		return nil, &codeAnswer{http.StatusBadRequest,
			fmt.Sprintf("the parameter kind is %q: workloads of this kind are not defended; those are %s", of, describeKinds(s.opts.View.Kinds))}
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.list)
	defer cancel()
	found = []suspendedWorkload{}
	for _, kind := range kinds {
		blocked, err := listSuspended(ctx, s.opts.View, kind, namespace, s.opts.Clock.Now())
		if err != nil {
			s.opts.Log.Error(err, "list suspended workloads")
			return nil, &codeAnswer{http.StatusServiceUnavailable, "the cluster can't be read now, try again"}
		}
		found = append(found, blocked...)
	}
	slices.SortFunc(found, func(a, b suspendedWorkload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.APIVersion, b.APIVersion))
	})
	return found, nil
}

// listSuspended lists the defended workloads of a kind that are blocked. The lists share their
// objects with the cache, so the objects are only read.
func listSuspended(
	ctx context.Context, view cluster.View, kind workload.Kind, namespace string, now time.Time,
) ([]suspendedWorkload, error) {
	list := kind.ObjectList()
	if err := view.Cached.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1alpha1.SuspendLabel},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list suspended workloads: %w", err)
	}
	var found []suspendedWorkload
	apiVersion, of := kind.GroupVersionKind().ToAPIVersionAndKind()
	enrolled := map[string]bool{}
	err := meta.EachListItem(list, func(o runtime.Object) error {
		w, err := meta.Accessor(o)
		if err != nil {
			return err
		}
		if _, asked := enrolled[w.GetNamespace()]; !asked {
			ns, err := view.Namespace(ctx, w.GetNamespace())
			if err != nil {
				return err
			}
			enrolled[w.GetNamespace()] = ns.Enrolled
		}
		if !enrolled[w.GetNamespace()] || workload.OptedOut(w.GetLabels()) {
			return nil
		}
		past, err := view.Past(ctx, w.GetNamespace(), w.GetUID())
		if err != nil {
			return err
		}
		found = append(found, suspendedWorkload{APIVersion: apiVersion, Kind: of, Name: w.GetName(), suspended: describeSuspended(w, past, now)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// describeSuspended describes a blocked workload from its releases and from its
// history.
func describeSuspended(w metav1.Object, past rollback.Past, now time.Time) suspended {
	labels := w.GetLabels()
	d := suspended{
		DeploymentName: w.GetName(),
		Namespace:      w.GetNamespace(),
		NowVersion:     labels[v1alpha1.VersionLabel],
		FailedPods:     []string{},
	}
	if at, err := strconv.ParseInt(labels[v1alpha1.SuspendLabel], 10, 64); err == nil {
		d.SuspendedAt = at
	}
	// An override release may be under way. The cause of the block is still an earlier
	// release.
	blocked, _, _ := strings.Cut(w.GetAnnotations()[v1alpha1.SuspendedByAnnotation], " ")
	if blocked == "" {
		blocked = d.NowVersion
	}
	// Add releases that succeeded and are not in the history, because the history is turned
	// off or no pod was verified.
	history, changes := slices.Clone(past.History), slices.Clone(past.Changes)
	slices.SortFunc(changes, func(a, b v1alpha1.ChangeWorkload) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for i := range changes {
		change := &changes[i]
		if change.Spec.Reversion == blocked {
			for j := range change.Status.DefenseCheckFailPods {
				d.FailedPods = append(d.FailedPods, change.Status.DefenseCheckFailPods[j].Pod)
			}
		}
		if change.Status.Status == v1alpha1.ChangeWorkloadSuccess {
			history = append(history, workload.Revision{Version: change.Spec.Reversion, Release: change.Spec.Release})
		}
	}
	d.SuccessVersion = rollback.NewestSuccess(history, d.NowVersion, w.GetAnnotations(), now)
	d.HasSuccessVersion = d.SuccessVersion != ""
	return d
}
