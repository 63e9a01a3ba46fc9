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
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// SuspendPath lists the workloads whose releases are blocked, of one namespace
// (parameter "namespace") or of all.
const SuspendPath = "/openapi/altershield/suspend/deployment"

// suspendAnswer is the answer of SuspendPath.
type suspendAnswer struct {
	Code        int         `json:"code"`
	Message     string      `json:"message"`
	Deployments []suspended `json:"deployments"`
}

// suspended is a workload whose releases are blocked.
type suspended struct {
	DeploymentName string `json:"deploymentName"`
	Namespace      string `json:"namespace"`
	// NowVersion is the version it was released with last.
	NowVersion string `json:"nowVersion"`
	// SuccessVersion is the newest other version that was a success, one to go
	// back to.
	HasSuccessVersion bool   `json:"hasSuccessVersion"`
	SuccessVersion    string `json:"successVersion"`
	// SuspendedAt is in Unix seconds; 0 where the label says nothing readable.
	SuspendedAt int64 `json:"suspendedAt"`
	// FailedPods are names of pods of the version it is blocked because of, as
	// far as its ChangeWorkload lists them.
	FailedPods []string `json:"failedPods"`
}

func (s *Server) listSuspended(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	for key, values := range query {
		// The signature covers neither path nor method: what is signed to be
		// read must not be taken for something else.
		if key != "namespace" || len(values) > 1 {
			writeJSON(w, http.StatusBadRequest, codeAnswer{http.StatusBadRequest, fmt.Sprintf("the only parameter is namespace, given once; not %q", key)})
			return
		}
	}
	namespace := query.Get("namespace")
	if problems := validation.IsDNS1123Label(namespace); namespace != "" && len(problems) > 0 {
		writeJSON(w, http.StatusBadRequest, codeAnswer{http.StatusBadRequest,
			"the parameter namespace is not the name of a namespace: " + strings.Join(problems, "; ")})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.list)
	defer cancel()
	found, err := observeSuspended(ctx, s.opts.View, namespace, s.opts.Clock.Now())
	if err != nil {
		s.opts.Log.Error(err, "list suspended workloads")
		writeJSON(w, http.StatusServiceUnavailable, codeAnswer{http.StatusServiceUnavailable, "the cluster can't be read now, try again"})
		return
	}
	writeJSON(w, http.StatusOK, suspendAnswer{
		Code: http.StatusOK, Message: fmt.Sprintf("suspended deployments: %d", len(found)), Deployments: found,
	})
}

// observeSuspended lists the workloads under defense that are blocked, by
// namespace and name. The lists share their objects with the cache and are only
// read.
func observeSuspended(ctx context.Context, view cluster.View, namespace string, now time.Time) ([]suspended, error) {
	list := deployments.ObjectList()
	if err := view.Cached.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1alpha1.SuspendLabel},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list suspended workloads: %w", err)
	}
	found := []suspended{}
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
		if !enrolled[w.GetNamespace()] || defense.OptedOut(w.GetLabels()) {
			return nil
		}
		past, err := view.Past(ctx, w.GetNamespace(), w.GetUID())
		if err != nil {
			return err
		}
		found = append(found, describeSuspended(w, past, now))
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b suspended) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.DeploymentName, b.DeploymentName))
	})
	return found, nil
}

// describeSuspended describes a blocked workload from its releases and from its
// history.
func describeSuspended(w metav1.Object, past defense.Past, now time.Time) suspended {
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
	// A release that passed the block may be under way: the block is still
	// because of an earlier one.
	blocked, _, _ := strings.Cut(w.GetAnnotations()[v1alpha1.SuspendedByAnnotation], " ")
	if blocked == "" {
		blocked = d.NowVersion
	}
	// What succeeded and is not in the history: it is turned off, or no pod was
	// verified.
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
			history = append(history, defense.Revision{Version: change.Spec.Reversion, Release: change.Spec.Release})
		}
	}
	d.SuccessVersion = defense.NewestSuccess(history, d.NowVersion, w.GetAnnotations(), now)
	d.HasSuccessVersion = d.SuccessVersion != ""
	return d
}
