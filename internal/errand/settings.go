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

package errand

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// settingsManager is the field manager of settings that an installer gives.
const settingsManager = "altershield-installer"

// named is a setting as an installer gives it. A content without enable turns the setting on.
// Other missing fields have the values of the default.
type named struct {
	Enable  *bool   `json:"enable"`
	Content *string `json:"content,omitempty"`
	Locked  *bool   `json:"locked,omitempty"`
}

func runSettings(ctx context.Context, args []string, env Environment) error {
	c := newCommon("settings", time.Minute)
	text := c.flags.String("set", "", `settings as JSON, by name, as in {"observe":{"enable":true},"branch":{"enable":true,"content":"5"}}`)
	api, err := c.parse(args, env)
	if err != nil {
		return err
	}
	objects, err := parseSettings(*text, c.namespace)
	if err != nil {
		return fmt.Errorf("settings: --set: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for i := range objects {
		if err := apply(ctx, api, &objects[i]); err != nil {
			return fmt.Errorf("settings: %s: %w", objects[i].GetName(), err)
		}
		_, _ = fmt.Fprintf(env.Out, "applied the setting %s\n", objects[i].GetName())
	}
	return nil
}

// parseSettings returns an object for each setting in the text.
func parseSettings(text, namespace string) ([]unstructured.Unstructured, error) {
	var all map[string]named
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil {
		return nil, fmt.Errorf("not settings by name in JSON: %w", err)
	}
	defaults := map[string]*v1alpha1.OpsConfigInfo{}
	list := settings.DefaultObjects(namespace)
	for i := range list {
		defaults[list[i].Name] = &list[i]
	}
	var objects []unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(all)) {
		object, ok := defaults[name]
		if !ok {
			return nil, fmt.Errorf("no setting is named %q: use one of %s", name, strings.Join(slices.Sorted(maps.Keys(defaults)), ", "))
		}
		value := all[name]
		if value.Enable == nil && value.Content == nil {
			return nil, fmt.Errorf("%s: enable and content are missing: give one of them", name)
		}
		object.Spec.Enable = value.Enable == nil || *value.Enable
		if value.Content != nil {
			object.Spec.Content = *value.Content
		}
		if value.Locked != nil {
			object.Spec.Locked = *value.Locked
		}
		if a := settings.Assess(object); !a.Accepted {
			return nil, fmt.Errorf("%s: %s", name, a.Message)
		}
		spec := map[string]any{"type": string(object.Spec.Type), "enable": object.Spec.Enable, "content": object.Spec.Content}
		if value.Locked != nil {
			spec["locked"] = object.Spec.Locked
		}
		u := unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("OpsConfigInfo"))
		u.SetNamespace(namespace)
		u.SetName(name)
		objects = append(objects, u)
	}
	return objects, nil
}

// apply applies a setting, server-side. It tries again until the context ends, because the
// kind may not be served yet right after an installation.
func apply(ctx context.Context, api client.Client, object *unstructured.Unstructured) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		configuration := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
		last = api.Apply(ctx, configuration, client.FieldOwner(settingsManager), client.ForceOwnership)
		if apierrors.IsInvalid(last) {
			return false, last
		}
		return last == nil, nil
	})
	if last != nil && !errors.Is(last, context.DeadlineExceeded) {
		return last
	}
	return err
}
