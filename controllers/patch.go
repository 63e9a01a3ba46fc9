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

package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// workloadPatch is a JSON patch of a workload's labels and annotations, of its
// pause, and of its template when it is rolled back. It starts with tests of the
// facts it was decided on, so that it applies to that workload, that release and
// nothing else, while changes of anything it does not touch (replicas, status, a
// user's annotations) do not get in its way.
type workloadPatch struct {
	workload *defense.Workload
	ops      []patchOperation
}

type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patchRelease patches the workload while it is at the release it was observed
// at.
func patchRelease(w *defense.Workload) *workloadPatch {
	p := &workloadPatch{workload: w}
	p.add("test", "/metadata/uid", string(w.UID))
	p.testPresent(w.Labels, v1alpha1.VersionLabel, labelPath(v1alpha1.VersionLabel))
	p.testPresent(w.Annotations, v1alpha1.ReleaseAnnotation, annotationPath(v1alpha1.ReleaseAnnotation))
	return p
}

// patchRevision patches the workload while it is exactly as it was observed.
func patchRevision(w *defense.Workload) *workloadPatch {
	p := &workloadPatch{workload: w}
	p.add("test", "/metadata/uid", string(w.UID))
	p.add("test", "/metadata/resourceVersion", w.ResourceVersion)
	if w.Labels == nil {
		p.add("add", "/metadata/labels", map[string]string{})
	}
	if w.Annotations == nil {
		p.add("add", "/metadata/annotations", map[string]string{})
	}
	return p
}

func (p *workloadPatch) add(op, path string, value any) {
	p.ops = append(p.ops, patchOperation{Op: op, Path: path, Value: value})
}

func (p *workloadPatch) testPresent(observed map[string]string, key, path string) {
	if v, ok := observed[key]; ok {
		p.add("test", path, v)
	}
}

func (p *workloadPatch) setLabel(key, value string) { p.add("add", labelPath(key), value) }

func (p *workloadPatch) setAnnotation(key, value string) { p.add("add", annotationPath(key), value) }

// setQuarantine writes the quarantine of the workload.
func (p *workloadPatch) setQuarantine(q defense.Quarantine) {
	annotations := map[string]string{}
	q.Annotate(annotations)
	for _, key := range []string{v1alpha1.QuarantinedAnnotation, v1alpha1.QuarantineReasonAnnotation} {
		if value, ok := annotations[key]; ok {
			p.setAnnotation(key, value)
		} else {
			p.dropAnnotation(key)
		}
	}
}

// dropLabel removes a label that was observed, and is as it was observed.
func (p *workloadPatch) dropLabel(key string) {
	if v, ok := p.workload.Labels[key]; ok {
		p.add("test", labelPath(key), v)
		p.add("remove", labelPath(key), nil)
	}
}

func (p *workloadPatch) dropAnnotation(key string) {
	if v, ok := p.workload.Annotations[key]; ok {
		p.add("test", annotationPath(key), v)
		p.add("remove", annotationPath(key), nil)
	}
}

// setTemplate replaces the pod template.
func (p *workloadPatch) setTemplate(template map[string]any) {
	p.add("replace", "/spec/template", template)
}

const pausedPath = "/spec/paused"

// pause pauses a workload that is not: a pause that the user made meanwhile is
// the user's.
func (p *workloadPatch) pause(version string) {
	p.add("test", pausedPath, nil)
	p.add("add", pausedPath, true)
	p.setAnnotation(v1alpha1.HaltedAnnotation, version)
}

// resume takes the operator's own pause back, with what says whose it is. Where
// somebody resumed already, only that goes.
func (p *workloadPatch) resume() {
	if p.workload.Annotations[v1alpha1.HaltedAnnotation] == "" {
		return
	}
	if p.workload.Paused {
		p.add("test", pausedPath, true)
		p.add("remove", pausedPath, nil)
	} else {
		p.add("test", pausedPath, nil)
	}
	p.dropAnnotation(v1alpha1.HaltedAnnotation)
}

// patchWorkload writes a patch.
func (b *base) patchWorkload(ctx context.Context, p *workloadPatch) error {
	body, err := json.Marshal(p.ops)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	obj := b.kind.Object()
	obj.SetNamespace(p.workload.Namespace)
	obj.SetName(p.workload.Name)
	if err := b.client.Patch(ctx, obj, client.RawPatch(types.JSONPatchType, body), client.DisableReadYourWritesConsistency); err != nil {
		return fmt.Errorf("patch %s %s/%s: %w", p.workload.Kind, p.workload.Namespace, p.workload.Name, err)
	}
	return nil
}

// isFailedTest says that a JSON patch did not apply, because a test in it failed
// or what it removes is gone. The API server answers 422 then with this message,
// and without the causes a validation error has.
func isFailedTest(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	return s.Code == http.StatusUnprocessableEntity && (s.Details == nil || len(s.Details.Causes) == 0) &&
		strings.Contains(s.Message, "the server rejected our request due to an error in our request")
}

func labelPath(key string) string { return "/metadata/labels/" + escapePointer(key) }

func annotationPath(key string) string { return "/metadata/annotations/" + escapePointer(key) }

func escapePointer(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
