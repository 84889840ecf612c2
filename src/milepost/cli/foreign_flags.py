"""llama-server's flags that are no settings of milepost (read off its build b11434).

Some ask for what milepost does anyway and are accepted, so that a llama-server command line keeps
working. The others change what a user gets: they are refused by name, not with a wrong neighbour.
"""

from __future__ import annotations


def _names(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


# Ask for what milepost always does, or for a detail that has no counterpart here.
ACCEPTED_SWITCHES = _names(
    "--kv-unified -kvu --cont-batching -cb --no-context-shift --cache-prompt --perf --no-perf",
    "--warmup --no-warmup --no-models-autoload --escape -e",
    "--no-agent -no-ag --no-ui-mcp-proxy --no-webui-mcp-proxy --no-cors-credentials",
    "--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps",
)
ACCEPTED_WITH_VALUE = _names("--threads-http --log-colors --defrag-thold -dt")

_SERVER = (
    "--cache-list -cl --completion-bash --kv-unified-per-slot --no-kv-unified -no-kvu "
    "--no-cont-batching -nocb --context-shift --keep --no-escape --reverse-prompt -r "
    "--spm-infill --json-schema -j --json-schema-file -jf --backend-sampling -bs "
    "--pooling --embd-normalize --reuse-port --path --cors-origins --cors-methods --cors-headers "
    "--cors-credentials --api-prefix --ui-config --webui-config --ui-config-file "
    "--webui-config-file --ui-mcp-proxy --webui-mcp-proxy --tools --tools-runtime "
    "--mcp-servers-config --mcp-servers-json --agent -ag --embedding --embeddings --rerank "
    "--reranking --ssl-key-file --ssl-cert-file --props --models-dir --models-preset "
    "--models-max --models-autoload --sleep-idle-seconds --tags --log-disable --log-prompts-dir"
)
_CACHE = (
    "--cache-idle-slots --no-cache-idle-slots --no-cache-prompt --cache-reuse "
    "--slot-prompt-similarity -sps --lookup-cache-static -lcs --lookup-cache-dynamic -lcd"
)
_CHAT = (
    "--reasoning-effort --reasoning-preserve --no-reasoning-preserve --prefill-assistant "
    "--no-prefill-assistant"
)
_HARDWARE = (
    "--cpu-mask -C --cpu-range -Cr --cpu-strict --prio --poll --cpu-mask-batch -Cb "
    "--cpu-range-batch -Crb --cpu-strict-batch --prio-batch --poll-batch --repack --no-repack -nr "
    "--no-host --rpc --lazy-mode -lzm --numa --device -dev --list-devices --override-tensor -ot "
    "--cpu-moe -cmoe --n-cpu-moe -ncmoe --n-cpu-ffn -ncffn --fit -fit --fit-target -fitt --fit-ctx "
    "-fitc --direct-io -dio --no-direct-io -ndio"
)
_MODEL = (
    "--model-url -mu --docker-repo -dr --override-kv --lora --lora-scaled "
    "--lora-init-without-apply --control-vector --control-vector-scaled "
    "--control-vector-layer-range --mmproj-url -mmu --mmproj-device -mmdev "
    "--mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir "
    "--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default "
    "--fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default "
    "--gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default --spec-default"
)
_SPECULATIVE = (
    "--spec-draft-hf -hfd -hfrd --hf-repo-draft --spec-draft-threads -td --threads-draft "
    "--spec-draft-threads-batch -tbd --threads-batch-draft --spec-draft-cpu-mask -Cd "
    "--cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict "
    "--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft "
    "--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch "
    "--cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch "
    "--poll-batch-draft --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd "
    "--cache-type-v-draft --spec-draft-override-tensor -otd --override-tensor-draft "
    "--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe "
    "-ncmoed --n-cpu-moe-draft --spec-draft-n-max --spec-draft-n-min --spec-synth-len "
    "--spec-synth-rates --spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min "
    "--spec-draft-backend-sampling --no-spec-draft-backend-sampling --spec-draft-sampling "
    "--spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft "
    "--n-gpu-layers-draft --spec-draft-model -md --model-draft --spec-type --spec-ngram-mod-n-min "
    "--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n "
    "--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n "
    "--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n "
    "--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --draft --draft-n --draft-max "
    "--draft-min --draft-n-min --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits"
)
NOT_YET = frozenset(" ".join((_SERVER, _CACHE, _CHAT, _HARDWARE, _MODEL, _SPECULATIVE)).split())

# What a user can do instead, where there is something.
REASONS = {
    "--no-kv-unified": "all requests share one KV cache",
    "-no-kvu": "all requests share one KV cache",
    "--model-url": "download the file and give it with -m, or use -hf user/repo",
    "-mu": "download the file and give it with -m, or use -hf user/repo",
    "--mmproj-url": "download the file and give it with --mmproj",
    "-mmu": "download the file and give it with --mmproj",
    "--log-disable": "use --log-verbosity 0",
}
