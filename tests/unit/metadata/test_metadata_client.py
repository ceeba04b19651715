"""Publication of the image to the parts of a node, in their order."""

from inline_controller import InlineController

from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.publisher import Publisher


def test_publishers_see_each_image_in_their_order():
    controller = InlineController(1)
    opened = controller.image
    controller.create("a", (1,))
    seen: list[tuple[str, list[str], list[str]]] = []

    def publisher(name: str, since: ClusterImage | None = None) -> Publisher:
        def follow(old: ClusterImage, new: ClusterImage) -> None:
            seen.append((name, sorted(old.topic_ids), sorted(new.topic_ids)))

        return Publisher(name, follow, lambda what, failure: None, since)

    end = controller.publish_to((publisher("first"), publisher("second", opened)))
    assert seen == [("first", [], ["a"]), ("second", [], ["a"])]
    seen.clear()
    controller.create("b", (1,))
    assert seen == [("first", ["a"], ["a", "b"]), ("second", ["a"], ["a", "b"])]
    end()
    controller.create("c", (1,))
    assert len(seen) == 2


def test_publisher_that_fails_is_reported_and_the_others_see_the_image():
    controller = InlineController(1)
    reported: list[str] = []
    seen: list[int] = []

    def fail(old: ClusterImage, new: ClusterImage) -> None:
        raise ValueError("broken")

    fails = Publisher("replicas", fail, lambda what, failure: reported.append(f"{what}: {failure}"))
    follows = Publisher("groups", lambda old, new: seen.append(new.index), fails.report)
    controller.publish_to((fails, follows))
    assert reported == ["replicas cannot follow the metadata: broken"]
    assert seen == [controller.image.index]
