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

package monitoring

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Follow keeps a target for each running pod of a namespace, as the discovery of Prometheus does in a cluster, until ctx ends. An empty
// namespace is all. It returns when it has read the pods. Later errors are those of Close.
//
// serves returns what a pod serves, and is called for each change of the pod; if it returns false, the pod has no metrics. The restart
// of a container resets the counters. Traffic that a test sets by Serve stays until serves returns another one. Only Follow removes its
// targets.
func (t *Targets) Follow(
	ctx context.Context, c kubernetes.Interface, namespace string, serves func(*corev1.Pod) (Traffic, TargetOptions, bool),
) error {
	f := &follower{targets: t, serves: serves, seen: map[cache.ObjectName]state{}}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", namespace, fields.Everything()),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { t.keep(f.changed(o)) },
			UpdateFunc: func(_, o any) { t.keep(f.changed(o)) },
			DeleteFunc: func(o any) { t.keep(f.deleted(o)) },
		},
	})
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("follow pods: %w", context.Cause(ctx))
	}
	return nil
}

// follower is a Follow that runs.
type follower struct {
	targets *Targets
	serves  func(*corev1.Pod) (Traffic, TargetOptions, bool)
	// seen are the pods that have targets. Only the informer's goroutine uses it.
	seen map[cache.ObjectName]state
}

// state is what a target of a pod was last set to.
type state struct {
	traffic Traffic
	// process changes with the pod and with each restart.
	process string
}

func (f *follower) changed(o any) error {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("%T is no pod", o)
	}
	name := cache.MetaObjectToName(pod)
	traffic, options, serving := f.serves(pod)
	before, known := f.seen[name]
	if !serving || pod.Status.Phase != corev1.PodRunning {
		delete(f.seen, name)
		return f.targets.Remove(pod.Namespace, pod.Name)
	}
	now := state{traffic: traffic, process: string(pod.UID)}
	for _, c := range pod.Status.ContainerStatuses {
		now.process += fmt.Sprintf(" %s %d", c.Name, c.RestartCount)
	}
	f.seen[name] = now
	if !known {
		target, err := f.targets.Add(pod.Namespace, pod.Name, options)
		if err != nil {
			return err
		}
		target.Serve(traffic)
		return nil
	}
	target := f.targets.Get(pod.Namespace, pod.Name)
	if target == nil {
		return fmt.Errorf("target %s was removed", name)
	}
	if now.process != before.process {
		target.Restart()
	}
	if now.traffic != before.traffic {
		target.Serve(traffic)
	}
	return nil
}

func (f *follower) deleted(o any) error {
	name, err := cache.DeletionHandlingObjectToName(o)
	if err != nil {
		return err
	}
	delete(f.seen, name)
	return f.targets.Remove(name.Namespace, name.Name)
}
