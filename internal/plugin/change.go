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
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// fieldManager is the field manager of all writes: managedFields and status.corrections name it.
const fieldManager = "kubectl-altershield"

// Values of --dry-run.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

// changer announces and makes the changes of a command. The steps of a command are methods in its file.
type changer struct {
	*connection
	dryRun string
}

// addTo adds the flag --dry-run.
func (c *changer) addTo(flags *pflag.FlagSet) {
	flags.StringVar(&c.dryRun, "dry-run", dryRunNone,
		"client: only say what would be changed. server: also ask the API server, whose admission answers, and store nothing. none: change it")
	flags.Lookup("dry-run").NoOptDefVal = dryRunClient
}

// check returns an error for an unknown value of --dry-run.
func (c *changer) check() error {
	switch c.dryRun {
	case dryRunNone, dryRunClient, dryRunServer:
		return nil
	default:
		return remedy(fmt.Errorf("--dry-run=%s is not known", c.dryRun), "give client, server or none")
	}
}

// pretends reports whether nothing is stored.
func (c *changer) pretends() bool { return c.dryRun != dryRunNone }

// change announces a change, and makes it. write gets the options of a dry run by the API server.
func (c *changer) change(what, done string, write func(dryRun []string) error) error {
	return c.changing([]string{what}, func() string { return done }, write)
}

// changing is change with a result that is known only after the write.
func (c *changer) changing(what []string, done func() string, write func(dryRun []string) error) error {
	for _, line := range what {
		printf(c.Out, "%s\n", line)
	}
	suffix := ""
	switch c.dryRun {
	case dryRunClient:
		printf(c.Out, "%s\n", done()+" (dry run)")
		return nil
	case dryRunServer:
		suffix = " (server dry run)"
	}
	if err := write(c.options()); err != nil {
		return err
	}
	printf(c.Out, "%s\n", done()+suffix)
	return nil
}

// options returns the options of a dry run by the API server.
func (c *changer) options() []string {
	if c.dryRun == dryRunServer {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// next prints the command that shows the result, if something was changed.
func (c *changer) next(command string) {
	if !c.pretends() {
		printf(c.Out, "see: %s\n", command)
	}
}

// patchOptions returns the options of a patch by this program.
func patchOptions(dryRun []string) *client.PatchOptions {
	return &client.PatchOptions{DryRun: dryRun, FieldManager: fieldManager}
}

// pointer returns a JSON pointer to a place in an object.
func pointer(path ...string) string { return workload.Path(path).Pointer() }

// labelOps and annotationOps set a key of an object that was read before, or remove the key if value is nil.
func labelOps(o client.Object, key string, value *string) []workload.Op {
	return mapOps(o, "labels", o.GetLabels(), key, value)
}

func annotationOps(o client.Object, key string, value *string) []workload.Op {
	return mapOps(o, "annotations", o.GetAnnotations(), key, value)
}

func mapOps(o client.Object, field string, stored map[string]string, key string, value *string) []workload.Op {
	old, there := stored[key]
	switch {
	case value == nil && !there:
		return nil
	case value == nil:
		at := pointer("metadata", field, key)
		return []workload.Op{{Op: "test", Path: at, Value: old}, {Op: "remove", Path: at}}
	case len(stored) == 0:
		// The new map would replace keys that were set since the object was read.
		return []workload.Op{
			{Op: "test", Path: pointer("metadata", "resourceVersion"), Value: o.GetResourceVersion()},
			{Op: "add", Path: pointer("metadata", field), Value: map[string]string{key: *value}},
		}
	default:
		return []workload.Op{{Op: "add", Path: pointer("metadata", field, key), Value: *value}}
	}
}

// sameObject lets a patch apply only to the object that was read, not to a later one of the same name.
func sameObject(o client.Object) workload.Op {
	return workload.Op{Op: "test", Path: pointer("metadata", "uid"), Value: string(o.GetUID())}
}

// patchOps applies operations to a workload, and returns the result.
func patchOps(
	ctx context.Context, c client.Client, stored *unstructured.Unstructured, ops []workload.Op, dryRun []string,
) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encode a patch: %w", err)
	}
	patched := stored.DeepCopy()
	if err := c.Patch(ctx, patched, client.RawPatch(types.JSONPatchType, data), patchOptions(dryRun)); err != nil {
		if cluster.Outdated(err) {
			return nil, remedy(fmt.Errorf("%s %s changed at the same time", strings.ToLower(stored.GetKind()), stored.GetName()),
				"check its status, and repeat the command")
		}
		return nil, fmt.Errorf("patch %s %s: %w", strings.ToLower(stored.GetKind()), stored.GetName(), err)
	}
	return patched, nil
}

// reachDefended reads the workload that arguments name, which must be defended.
func (c *changer) reachDefended(ctx context.Context, args []string) (client.WithWatch, *snapshot, error) {
	api, t, err := c.reach(ctx, args)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.read(ctx, api, t)
	if err != nil {
		return nil, nil, err
	}
	why := s.notDefended()
	if why == "" {
		return api, s, nil
	}
	do := "enrol it: " + c.commandIn("", "enroll", t.key.Namespace)
	switch {
	case workload.OptedOut(s.workload.Labels):
		do = "let it opt in again: " + c.command(t, "enroll")
	case !enrolledBy(t.kind, s.workload.Labels):
		do = "enrol it: " + c.kubectl(t.key.Namespace, "label", t.String(), v1alpha1.DefenseLabel+"="+v1alpha1.DefenseEnabled)
	}
	return nil, nil, remedy(fmt.Errorf("nothing can be done about releases here: %s", why), do)
}

// sameRelease lets a request apply only to the release that was read.
func sameRelease(s *snapshot) []workload.Op {
	release, ok := s.workload.Annotations[v1alpha1.ReleaseAnnotation]
	if !ok {
		return nil
	}
	return []workload.Op{{Op: "test", Path: pointer("metadata", "annotations", v1alpha1.ReleaseAnnotation), Value: release}}
}

// removeOverride removes the label of an override.
func (c *changer) removeOverride(ctx context.Context, api client.Client, s *snapshot, why string) error {
	what := fmt.Sprintf("%s: remove the label %s, %s", s.target, v1alpha1.IgnoredSuspendLabel, why)
	return c.change(what, s.target.String()+" label removed", func(dryRun []string) error {
		ops := append([]workload.Op{sameObject(s.stored)}, labelOps(s.stored, v1alpha1.IgnoredSuspendLabel, nil)...)
		patched, err := patchOps(ctx, api, s.stored, ops, dryRun)
		if err != nil {
			return err
		}
		return s.take(patched)
	})
}
